// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "patcher.h"

#include "delta.h"
#include "p2p/digest.h"

namespace p2p::weights {

bool Patcher::make(std::uint32_t chunk, std::string_view delta, std::uint64_t digest) {
  const std::uint64_t begin = demand_.begin(chunk), end = demand_.end(chunk);
  gather(base_->within(begin, end), made_);
  if (!apply_delta(delta, made_)) return false;
  if (p2p::digest(made_) != digest) return false;
  scatter(made_, into_.within(begin, end));
  return true;
}

}  // namespace p2p::weights
