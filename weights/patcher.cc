// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "patcher.h"

#include "delta.h"
#include "p2p/digest.h"

namespace p2p::weights {

Result<bool> Patcher::make(std::uint32_t chunk, std::string_view delta, std::uint64_t digest) {
  const std::uint64_t begin = demand_.begin(chunk), end = demand_.end(chunk);
  const Status read = base_->lent->gather(endpoint_, base_->pieces->within(begin, end), made_);
  if (!read) return tl::unexpected(read.error());
  if (!apply_delta(delta, made_) || p2p::digest(made_) != digest) return false;
  const Status written = into_.lent->scatter(endpoint_, made_, into_.pieces->within(begin, end));
  if (!written) return tl::unexpected(written.error());
  return true;
}

}  // namespace p2p::weights
