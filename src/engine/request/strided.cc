// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/request/strided.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace p2p::engine {
namespace {

std::uint64_t distance(std::int64_t stride) {
  const auto value = static_cast<std::uint64_t>(stride);
  return stride < 0 ? 0 - value : value;
}

std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) {
  if (a != 0 && b > ~std::uint64_t{0} / a) return std::nullopt;
  return a * b;
}

bool add_to(std::uint64_t& sum, std::optional<std::uint64_t> value) {
  if (!value || sum + *value < sum) return false;
  sum += *value;
  return true;
}

std::string text(const Strides& strides) {
  return fmt::format("{} rows (stride {}) of {} blocks (stride {}) of {} bytes", strides.rows,
                     strides.row_stride, strides.count, strides.stride, strides.block);
}

/// The same bytes in as few blocks as they have.
Strides merged(Strides strides) {
  const auto join = [&] {
    if (strides.count == 1 || distance(strides.stride) != strides.block || strides.stride < 0) return;
    strides.block *= strides.count;
    strides.count = 1;
  };
  join();
  if (strides.count == 1) {
    strides.count = std::exchange(strides.rows, 1);
    strides.stride = std::exchange(strides.row_stride, 0);
    join();
  }
  return strides;
}

/// All from the lowest byte to the end of the highest; nothing if that is beyond the address space.
struct Extent {
  std::uint64_t address = 0;
  std::uint64_t size = 0;
};
std::optional<Extent> extent_of(std::uint64_t address, const Strides& strides) {
  std::uint64_t below = 0;
  std::uint64_t above = strides.block;
  const auto reach = [&](std::int64_t stride, std::uint64_t times) {
    return add_to(stride < 0 ? below : above, product(distance(stride), times - 1));
  };
  if (!reach(strides.stride, strides.count) || !reach(strides.row_stride, strides.rows)) return std::nullopt;
  if (below > address || address - below + above < above) return std::nullopt;
  Extent extent{address - below, below};
  if (!add_to(extent.size, above) || extent.address + extent.size < extent.address) return std::nullopt;
  return extent;
}

/// A block of a row shares bytes with one of the row that is so many rows on.
bool rows_meet(const Strides& strides, std::uint64_t rows) {
  const std::uint64_t stride = distance(strides.stride);
  const std::uint64_t apart = rows * distance(strides.row_stride);
  const std::uint64_t below = std::min(apart / stride, strides.count - 1);
  return apart - below * stride < strides.block ||
         (below + 1 < strides.count && (below + 1) * stride - apart < strides.block);
}

/// Of strides that fit the address space, as `merged` makes them: two blocks share bytes. Takes time for each
/// row, or for each block of a row, whichever are fewer.
bool overlaps(Strides strides) {
  if (strides.count > 1 && distance(strides.stride) < strides.block) return true;
  if (strides.rows == 1) return false;
  if (distance(strides.row_stride) < strides.block) return true;
  if (strides.rows > strides.count) {
    std::swap(strides.rows, strides.count);
    std::swap(strides.row_stride, strides.stride);
  }
  for (std::uint64_t rows = 1; rows != strides.rows; ++rows) {
    if (rows_meet(strides, rows)) return true;
  }
  return false;
}

/// One side of a pair.
struct Side {
  std::string_view name;
  std::uint64_t address = 0;
  Strides strides{};
  bool target = false;

  tl::unexpected<Error> refuse(ErrorCode code, Operation operation, std::string_view why) const {
    return fail(code, "{} {} strided memory at {:#x}, {}: {}",
                operation == Operation::kWrite ? "write" : "read", name, address, text(strides), why);
  }

  /// Blocks and bytes.
  Result<std::uint64_t> measure(Operation operation, std::uint64_t& blocks) const {
    const auto all = product(strides.count, strides.rows);
    const auto bytes = all ? product(*all, strides.block) : std::nullopt;
    if (!bytes) return refuse(ErrorCode::kOutOfRange, operation, "more bytes than there are addresses");
    if (*bytes == 0) return 0;
    const Strides least = merged(strides);
    blocks += least.count * least.rows;
    if (least.count * least.rows > Strides::kMostBlocks || blocks > Strides::kMostBlocks) {
      return refuse(ErrorCode::kInvalidArgument, operation,
                    fmt::format("more than {} blocks in one transfer", Strides::kMostBlocks));
    }
    if (!extent_of(address, least)) {
      return refuse(ErrorCode::kOutOfRange, operation, "beyond the address space");
    }
    if (target && overlaps(least)) {
      return refuse(ErrorCode::kInvalidArgument, operation, "blocks that are to be written overlap");
    }
    return *bytes;
  }
};

/// So many of what is inside, at a stride on each side.
struct Level {
  std::uint64_t count = 1;
  std::int64_t local = 0;
  std::int64_t remote = 0;
};

/// One side's levels, of which the innermost may be taken in parts.
struct Levels {
  Levels(const Strides& strides, std::uint64_t block)
      : levels{{{strides.block / block, static_cast<std::int64_t>(block)},
                {strides.count, strides.stride},
                {strides.rows, strides.row_stride}}} {
    skip();
  }

  void skip() {
    while (at != levels.size() && levels[at].first == 1) ++at;
  }

  /// The stride of so many, which divide those that are left of the level.
  std::int64_t take(std::uint64_t count) {
    auto& [left, stride] = levels[at];
    const std::int64_t taken = stride;
    left /= count;
    stride *= static_cast<std::int64_t>(count);
    skip();
    return taken;
  }

  std::array<std::pair<std::uint64_t, std::int64_t>, 3> levels;
  std::size_t at = 0;
};

}  // namespace

std::optional<Repeats> StridedPair::repeats() const {
  const std::uint64_t block = std::min(local.block, remote.block);
  if (bytes == 0 || local.block % block != 0 || remote.block % block != 0) return std::nullopt;
  Levels here(local, block);
  Levels there(remote, block);
  std::array<Level, 2> levels{};
  std::size_t used = 0;
  // Both have equally many blocks, so that they end together.
  while (here.at != here.levels.size() && there.at != there.levels.size()) {
    const std::uint64_t ours = here.levels[here.at].first, theirs = there.levels[there.at].first;
    const std::uint64_t count = std::min(ours, theirs);
    if (used == levels.size() || ours % count != 0 || theirs % count != 0) return std::nullopt;
    levels[used++] = {count, here.take(count), there.take(count)};
  }
  return Repeats{block,           levels[0].count, levels[0].local, levels[0].remote,
                 levels[1].count, levels[1].local, levels[1].remote};
}

Result<StridedList> StridedList::make(Operation operation, std::span<const LocalStrided> local,
                                      std::span<const RemoteStrided> remote) {
  const bool writes = operation == Operation::kWrite;
  if (local.size() != remote.size()) {
    return fail(ErrorCode::kInvalidArgument, "{} strided memory: {} local descriptors, {} remote ones",
                writes ? "write" : "read", local.size(), remote.size());
  }
  StridedList list;
  std::uint64_t blocks = 0;
  for (std::size_t i = 0; i != local.size(); ++i) {
    const Side here{"local", reinterpret_cast<std::uintptr_t>(local[i].data), local[i].strides, !writes};
    const Side there{"remote", remote[i].address, remote[i].strides, writes};
    const auto bytes = here.measure(operation, blocks);
    if (!bytes) return tl::unexpected(bytes.error());
    const auto theirs = there.measure(operation, blocks);
    if (!theirs) return tl::unexpected(theirs.error());
    if (*bytes != *theirs) {
      return there.refuse(ErrorCode::kInvalidArgument, operation,
                          fmt::format("{} bytes, and {} at the local side", *theirs, *bytes));
    }
    StridedPair pair{.data = local[i].data, .address = remote[i].address, .bytes = *bytes};
    if (*bytes != 0) {  // else its numbers may be any
      pair.local = merged(here.strides);
      pair.remote = merged(there.strides);
    }
    const Extent around = *extent_of(here.address, pair.local);
    const Extent range = *extent_of(there.address, pair.remote);
    list.local.push_back({local[i].region, local[i].data - (here.address - around.address), around.size});
    list.remote.push_back({remote[i].region, range.address, range.size});
    list.pairs.push_back(pair);
  }
  return list;
}

}  // namespace p2p::engine
