// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/crypto/mutual_proof.h"

namespace p2p::crypto {

MutualProof::MutualProof(std::string_view use, ByteView secret) : secret_(secret) { bind(as_bytes(use)); }

MutualProof& MutualProof::bind(ByteView field) {
  ByteWriter out(said_);
  out.put(static_cast<std::uint32_t>(field.size()));
  out.put(field);
  return *this;
}

Digest MutualProof::digest(std::uint8_t side) const {
  Bytes message = said_;
  ByteWriter(message).put(side);
  return hmac_sha256(secret_, message);
}

}  // namespace p2p::crypto
