// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/memory/region_keys.h"

#include <span>

#include "drivers/crypto/crypto.h"

namespace p2p::engine {

RegionKeys::~RegionKeys() {
  MutexLock lock(mutex_);
  crypto::wipe(std::as_writable_bytes(std::span(block_)));
}

Result<RegionKey> RegionKeys::draw() {
  MutexLock lock(mutex_);
  if (left_ == 0) {
    if (auto drawn = crypto::random_bytes(std::as_writable_bytes(std::span(block_))); !drawn) {
      return tl::unexpected(drawn.error());
    }
    left_ = kBlock;
  }
  RegionKey& next = block_.at(--left_);
  const RegionKey key = next;
  crypto::wipe(next);
  return key;
}

}  // namespace p2p::engine
