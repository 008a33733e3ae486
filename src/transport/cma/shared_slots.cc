// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cma/shared_slots.h"

#include <cerrno>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/io_vector.h"
#include "base/safe_copy.h"

namespace p2p::cma {

SharedSlots::SharedSlots(UniqueFd file, std::size_t begin, bool first)
    : file_(std::move(file)),
      mine_(static_cast<std::int64_t>(first ? begin : begin + kBytes)),
      theirs_(static_cast<std::int64_t>(first ? begin + kBytes : begin)) {}

std::int64_t SharedSlots::take() {
  for (std::size_t i = 0; i != kSlots; ++i) {
    if (std::exchange(used_[i], true)) continue;
    return static_cast<std::int64_t>(i * kSlotBytes);
  }
  return -1;
}

Status SharedSlots::move(std::int64_t slot, const Batch& batch, std::byte* staged, bool to_slot) {
  runs_.clear();
  if (staged != nullptr) {
    runs_.push_back({staged, batch.bytes});
  } else {
    batch.for_each_piece([&](const Segment& piece) { append_run(runs_, piece.local, piece.size); });
  }
  return move_runs(mine_ + slot, to_slot);
}

Status SharedSlots::serve(const ServedCopy& asked, std::optional<Error>& breach) {
  runs_.clear();
  const std::uint64_t at = asked.segments.empty() ? 0 : asked.segments.front().remote;
  std::uint64_t bytes = 0;
  for (const Segment& piece : asked.segments) {
    const bool inside = piece.remote <= kBytes && piece.size <= kBytes - piece.remote;
    if (!inside || piece.remote != at + bytes) {
      breach = {ErrorCode::kProtocol, "a cma peer asks for bytes that do not lie together in its slots"};
      return tl::unexpected(*breach);
    }
    append_run(runs_, piece.local, piece.size);
    bytes += piece.size;
  }
  return move_runs(theirs_ + static_cast<std::int64_t>(at), asked.operation == Operation::kWrite);
}

Status SharedSlots::move_runs(std::int64_t at, bool to_file) {
  std::span<iovec> left = runs_;
  while (!left.empty()) {
    const auto count = static_cast<int>(left.size());
    const ssize_t moved = to_file ? ::pwritev(file_.get(), left.data(), count, at)
                                  : ::preadv(file_.get(), left.data(), count, at);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0 && errno != EFAULT) {
      return tl::unexpected(system_error(fmt::format("{} a shared slot", to_file ? "fill" : "empty")));
    }
    if (moved <= 0) return tl::unexpected(bad_memory(to_file ? "read" : "write to", left));
    at += moved;
    left = left.subspan(cut_front(left, static_cast<std::size_t>(moved)));
  }
  return {};
}

}  // namespace p2p::cma
