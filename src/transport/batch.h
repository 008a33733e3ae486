// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "p2p/result.h"

namespace p2p {

class Registration;
class RemoteKey;

enum class Operation : std::uint8_t { kWrite, kRead };

/// One contiguous run: `size` bytes at `local` here, at `remote` in the peer's address space.
/// The engine has checked both against `registration` and, as far as this side knows it, the peer's region.
struct Segment {
  std::byte* local = nullptr;
  std::uint64_t remote = 0;
  std::uint64_t size = 0;
  const Registration* registration = nullptr;  ///< of `local`, with this transport
  const RemoteKey* key = nullptr;              ///< of `remote`, with this transport
};

/// Chosen by the engine, unique among the batches that a channel has not completed yet.
enum class BatchId : std::uint64_t {};

/// What a channel takes at once: up to a chunk's worth of a transfer's segments, scattered blocks together.
/// The first segment is used from `skip` on and the last one until `bytes` are reached; `for_each_piece`
/// walks exactly those. The segments stay in place and unchanged, and their memory registered, until the
/// batch has completed.
struct Batch {
  BatchId id{};
  Operation operation = Operation::kWrite;
  std::span<const Segment> segments;
  std::uint64_t skip = 0;
  std::uint64_t bytes = 0;

  /// Calls `visit(const Segment& piece)` for each clipped segment, in order. Empty segments are skipped.
  template <class Visitor>
  void for_each_piece(Visitor&& visit) const {
    std::uint64_t left = bytes;
    std::uint64_t offset = skip;
    for (const Segment& segment : segments) {
      const std::uint64_t size = std::min(left, segment.size - offset);
      if (size != 0) {
        visit(Segment{segment.local + offset, segment.remote + offset, size, segment.registration,
                      segment.key});
      }
      left -= size;
      offset = 0;
    }
  }
};

/// kNotFound if local memory of the batch was freed since it was registered (`Registration::check_alive`).
Status check_alive(const Batch& batch);

/// The same of pieces.
Status check_alive(std::span<const Segment> pieces);

/// True if local memory of the batch is on a device.
bool starts_on_device(const Batch& batch);

/// How one batch ended. After it the channel touches neither the batch's segments nor its memory, here and,
/// for as long as the peer lives and the channel works, there. An error with code kPeerGone says that the
/// channel is lost and the batch may be sent again over another one; any other is final.
struct Completion {
  BatchId id{};
  Status status;
};

}  // namespace p2p
