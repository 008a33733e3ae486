// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "base/bytes.h"
#include "base/role.h"
#include "drivers/crypto/crypto.h"

namespace p2p::crypto {

/// Shows the other side of a handshake that this side knows their secret, and checks that it does. A proof
/// holds for one use, one side and what both sides have said, in this order; it is no proof of anything else.
/// So that an old one is of no use either, each side binds a nonce of its own. `secret` outlives this.
class MutualProof {
 public:
  /// `use` names the protocol, and appears in docs/wire.md.
  MutualProof(std::string_view use, ByteView secret);

  /// Both sides bind the same bytes in the same order; where one field ends and the next begins counts too.
  MutualProof& bind(ByteView field);

  Digest by(Role side) const { return digest(static_cast<std::uint8_t>(side)); }

  /// Takes the same time whatever differs.
  bool holds(Role side, ByteView proof) const { return equal(proof, by(side)); }

  /// A key that both sides have, for this use and what was said alone; no proof tells anything of it.
  Digest key() const { return digest(kKey); }

 private:
  static constexpr std::uint8_t kKey = 2;  // in place of a side

  Digest digest(std::uint8_t side) const;

  ByteView secret_;
  Bytes said_;
};

}  // namespace p2p::crypto
