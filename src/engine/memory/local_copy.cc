// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/memory/local_copy.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/guarded_copy.h"
#include "base/safe_copy.h"
#include "device/service.h"
#include "device/staging.h"
#include "engine/memory/gpu_patience.h"
#include "engine/memory/spans.h"

namespace p2p::engine {
namespace {

using device::Staging;
using Clock = std::chrono::steady_clock;

// Slots under way at a time: while this thread empties one, the GPU fills others.
constexpr Staging::Share kCopyShare{.slots = {4, 0, 0}};

enum class Way : std::uint8_t { kGather, kScatter };

std::string_view name(Way way) { return way == Way::kGather ? "gather" : "scatter"; }

/// Between bytes of the host in a row and pieces of any memory, through pinned slots.
class Passage {
 public:
  Passage(Way way, const std::shared_ptr<device::StagingPool>& pool, std::byte* row)
      : way_(way), row_(row), staging_(pool, kCopyShare, false) {}

  Status copy(const std::vector<device::StagedPiece>& pieces) {
    std::vector<device::StagedPiece> part;
    std::uint64_t bytes = 0;
    for (device::StagedPiece piece : pieces) {
      while (piece.bytes != 0) {
        const std::uint64_t size = std::min(piece.bytes, device::Service::kSlotBytes - bytes);
        part.push_back({piece.data, size, piece.device});
        piece.data += size, piece.bytes -= size, bytes += size;
        if (bytes != device::Service::kSlotBytes && part.size() != device::Service::kSlotPieces) continue;
        if (Status started = start(part, bytes); !started) return started;
        part.clear();
        bytes = 0;
      }
    }
    if (bytes != 0) {
      if (Status started = start(part, bytes); !started) return started;
    }
    while (!under_way_.empty()) {
      if (Status finished = finish_first(); !finished) return finished;
    }
    return {};
  }

 private:
  struct UnderWay {
    Staging::Slot* slot = nullptr;
    std::span<std::byte> row;
  };

  Status start(const std::vector<device::StagedPiece>& part, std::uint64_t bytes) {
    auto slot = staging_.take(Staging::Use::kDeparture);
    while (slot && *slot == nullptr) {
      if (Status finished = finish_first(); !finished) return finished;
      slot = staging_.take(Staging::Use::kDeparture);
    }
    if (!slot) return tl::unexpected(std::move(slot.error()));
    if (way_ == Way::kScatter) {
      std::memcpy((*slot)->data(), row_, bytes);
      staging_.unpack(**slot, part);
    } else {
      staging_.pack(**slot, part);
    }
    under_way_.push_back({*slot, {row_, bytes}});
    row_ += bytes;
    return {};
  }

  Status finish_first() {
    const UnderWay first = under_way_.front();
    const auto begun = Clock::now();
    while (!first.slot->finished()) {
      if (Clock::now() - begun >= kGpuLimit) {
        return fail(ErrorCode::kSystem, "{}: a GPU has not copied {} bytes within {} s", name(way_),
                    first.row.size(), kGpuLimit.count());
      }
      wait_for_gpu(begun);
    }
    if (Status copied = first.slot->status(); !copied) return copied;
    if (way_ == Way::kGather) std::memcpy(first.row.data(), first.slot->data(), first.row.size());
    staging_.give_back(*first.slot);
    under_way_.pop_front();
    return {};
  }

  const Way way_;
  std::byte* row_;  // of what is to start
  Staging staging_;
  std::deque<UnderWay> under_way_;  // at most as many as slots, and at least one where none is free
};

Status copy_on_host(Way way, const std::vector<device::StagedPiece>& pieces, std::byte* row) {
  look_after_guard();  // the program may have put handlers of its own in place since memory was registered
  for (const device::StagedPiece& piece : pieces) {
    const bool gathers = way == Way::kGather;
    if (!guarded_copy(gathers ? row : piece.data, gathers ? piece.data : row, piece.bytes)) {
      return tl::unexpected(bad_memory(name(way), piece.data, piece.bytes));
    }
    row += piece.bytes;
  }
  return {};
}

Status copy(Way way, const RegionTable& regions, const std::shared_ptr<device::StagingPool>& staging,
            std::span<const LocalSpan> spans, std::span<std::byte> row) {
  if (auto here = regions.check_process(); !here) return here;
  if (total(spans) != row.size()) {
    return fail(ErrorCode::kInvalidArgument, "{}: the spans have {} bytes and the row {}", name(way),
                total(spans), row.size());
  }
  std::vector<device::StagedPiece> pieces;
  HeldRegions held;
  RegionId freed{};
  bool any_freed = false, any_gpu = false;
  const Status found =
      visit_spans(name(way), regions, spans, [&](const LocalSpan& span, const std::shared_ptr<Region>& in) {
        held.add(in);
        if (!in->alive()) any_freed = true, freed = span.region;
        const MemoryPlace place = in->info().place;
        any_gpu |= place.kind == MemoryKind::kCuda;
        if (span.size != 0) pieces.push_back(device::StagedPiece::of(span.data, span.size, place));
      });
  if (!found) return found;
  if (any_freed) {
    return fail(ErrorCode::kNotFound, "{}: the memory of region {} was freed", name(way),
                to_underlying(freed));
  }
  return any_gpu ? Passage(way, staging, row.data()).copy(pieces) : copy_on_host(way, pieces, row.data());
}

}  // namespace

Status gather(const RegionTable& regions, const std::shared_ptr<device::StagingPool>& staging,
              std::span<const LocalSpan> from, std::span<std::byte> into) {
  return copy(Way::kGather, regions, staging, from, into);
}

Status scatter(const RegionTable& regions, const std::shared_ptr<device::StagingPool>& staging,
               std::span<const std::byte> from, std::span<const LocalSpan> into) {
  return copy(Way::kScatter, regions, staging, into,
              {const_cast<std::byte*>(from.data()), from.size()});  // only read
}

}  // namespace p2p::engine
