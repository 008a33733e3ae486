// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "p2p/result.h"

namespace p2p {

class Registration;
class RemoteKey;

enum class Operation : std::uint8_t { kWrite, kRead };

/// How equal blocks lie at both sides: rows of them. Strides are bytes from start to start, and may be
/// negative.
struct Repeats {
  std::uint64_t block = 0;  ///< bytes
  std::uint64_t count = 1;  ///< blocks of a row
  std::int64_t local_stride = 0;
  std::int64_t remote_stride = 0;
  std::uint64_t rows = 1;
  std::int64_t local_row = 0;
  std::int64_t remote_row = 0;
};

/// One contiguous run: `size` bytes at `local` here, at `remote` in the peer's address space.
/// The engine has checked both against `registration` and, as far as this side knows it, the peer's region.
struct Segment {
  std::byte* local = nullptr;
  std::uint64_t remote = 0;
  std::uint64_t size = 0;
  const Registration* registration = nullptr;  ///< of `local`, with this transport
  const RemoteKey* key = nullptr;              ///< of `remote`, with this transport

  /// Not null: `size` bytes in so many blocks, of which the first is at `local` and `remote`. Only for
  /// transports that take them (Transport::takes_repeats).
  const Repeats* repeats = nullptr;
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

  /// So many pieces at most.
  std::uint64_t pieces() const {
    std::uint64_t sum = 0;
    for (const Segment& segment : segments) {
      sum += segment.repeats == nullptr ? 1 : segment.repeats->count * segment.repeats->rows;
    }
    return sum;
  }

  /// Calls `visit(const Segment& piece)` for each clipped segment, in order, block by block where it repeats.
  /// Empty segments are skipped.
  template <class Visitor>
  void for_each_piece(Visitor&& visit) const {
    const auto visit_blocks = [&visit](const Segment& run) {
      if (run.repeats == nullptr) return visit(run);
      const Repeats& repeats = *run.repeats;
      for (std::uint64_t row = 0; row != repeats.rows; ++row) {
        for (std::uint64_t i = 0; i != repeats.count; ++i) visit(block_of(run, repeats, row, i));
      }
    };
    for_each_run(visit_blocks, [](std::span<const Segment>) { return Taken{}; });
  }

  /// Segments that were taken at once, and their bytes.
  struct Taken {
    std::size_t segments = 0;
    std::uint64_t bytes = 0;
  };

  /// The same, but whole blocks that repeat are one run, as many as can be told at once; and before each
  /// segment that is whole `take(std::span<const Segment>)` may take as many of those that follow as it
  /// likes.
  template <class Visitor, class Taker>
  void for_each_run(Visitor&& visit, Taker&& take) const {
    std::uint64_t left = bytes;
    std::uint64_t offset = skip;
    for (std::size_t i = 0; i != segments.size();) {
      if (offset == 0 && i + 1 != segments.size()) {
        const Taken taken = take(segments.subspan(i, segments.size() - 1 - i));
        left -= taken.bytes;
        i += taken.segments;
        if (taken.segments != 0) continue;
      }
      const Segment& segment = segments[i++];
      const std::uint64_t size = std::min(left, segment.size - offset);
      if (segment.repeats != nullptr) {
        visit_repeats(segment, offset, size, visit);
      } else if (size != 0) {
        visit(Segment{segment.local + offset, segment.remote + offset, size, segment.registration,
                      segment.key});
      }
      left -= size;
      offset = 0;
    }
  }

 private:
  static Segment block_of(const Segment& first, const Repeats& repeats, std::uint64_t row, std::uint64_t i) {
    const auto place = [&](std::int64_t row_stride, std::int64_t stride) {
      return static_cast<std::int64_t>(row) * row_stride + static_cast<std::int64_t>(i) * stride;
    };
    return {first.local + place(repeats.local_row, repeats.local_stride),
            first.remote + static_cast<std::uint64_t>(place(repeats.remote_row, repeats.remote_stride)),
            repeats.block, first.registration, first.key};
  }

  // A cut within a block makes a piece of it, one within a row a run of the rest of that row.
  template <class Visitor>
  static void visit_repeats(const Segment& segment, std::uint64_t at, std::uint64_t size, Visitor& visit) {
    const Repeats& all = *segment.repeats;
    for (const std::uint64_t end = at + size; at != end;) {
      const std::uint64_t index = at / all.block, within = at % all.block, place = index % all.count;
      Segment run = block_of(segment, all, index / all.count, place);
      const std::uint64_t blocks = (end - at) / all.block;
      if (within != 0 || blocks == 0) {
        run.local += within;
        run.remote += within;
        run.size = std::min(all.block - within, end - at);
        visit(run);
      } else {
        Repeats part = all;
        const bool whole_rows = place == 0 && blocks >= all.count;
        part.rows = whole_rows ? blocks / all.count : 1;
        if (!whole_rows) part.count = std::min(all.count - place, blocks);
        run.size = all.block * part.count * part.rows;
        run.repeats = &part;
        visit(run);
      }
      at += run.size;
    }
  }
};

/// kNotFound if local memory of the batch was freed since it was registered (`Registration::check_alive`).
Status check_alive(const Batch& batch);

/// The same, segment by segment. Those of few regions take turns: each region is asked once, not each
/// segment.
class AliveCheck {
 public:
  void ask(const Registration* registration);

  Status status;

 private:
  std::array<const Registration*, 8> asked_{};
  std::size_t next_ = 0;
};

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
