// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/bytes.h"
#include "p2p/result.h"
#include "wire/messages.h"

namespace p2p::engine {

/// Messages as frames, one after the other, from the first that the peer has not acknowledged on. They are
/// named by where they lie in the stream of all bytes that were ever appended.
class FrameLog {
 public:
  /// Appends a message; `tail`, if there is any, continues its last field, which is of type Bytes and empty.
  /// An error: the memory of the tail is bad, and nothing was appended.
  Status append(const wire::Message& message, std::span<const ByteView> tail = {});

  std::uint64_t begin() const { return begin_; }
  std::uint64_t end() const { return begin_ + size_; }

  /// Whole frames from `offset` on, a frame's beginning: as many as `most` bytes hold, or one.
  ByteView from(std::uint64_t offset, std::size_t most) const;

  /// Forgets all before `offset`; false, and nothing is forgotten, if no frame begins or ends there.
  bool drop(std::uint64_t offset);

 private:
  std::byte* make_room(std::size_t bytes);

  // Not a vector: room need not be cleared before it is written.
  std::unique_ptr<std::byte[]> data_;  // NOLINT(modernize-avoid-c-arrays)
  std::size_t capacity_ = 0;
  std::size_t first_ = 0;
  std::size_t size_ = 0;
  std::uint64_t begin_ = 0;
  Bytes frame_;  // scratch
};

}  // namespace p2p::engine
