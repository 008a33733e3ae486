// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

namespace p2p {

/// Takes the word blocks that come over a channel; called within `progress`.
class MessageListener {
 public:
  virtual ~MessageListener() = default;
  virtual void take(std::span<const std::byte> block) = 0;
};

/// A block of words has at most this many bytes.
inline constexpr std::size_t kMaxMessageBlockBytes = std::size_t{48} << 10;

}  // namespace p2p
