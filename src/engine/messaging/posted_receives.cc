// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/messaging/posted_receives.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/underlying.h"
#include "p2p/memory.h"

namespace p2p::engine {
namespace {

// Of one receive. A peer that posts more is broken, or wants to fill the memory of this process.
constexpr std::size_t kMaxSpans = std::size_t{1} << 22;

// Keeps the sum of kMaxSpans sizes within 64 bits.
constexpr std::uint64_t kMaxSpanBytes = std::uint64_t{1} << 40;

// What a receive takes beside its spans, with its node in the map.
constexpr std::size_t kReceiveBytes = 96;

Status check(const wire::ReceivePosted& posted) {
  for (const wire::ReceiveSpan& span : posted.spans) {
    if (span.address + span.size < span.address || span.size > kMaxSpanBytes ||
        span.kind > to_underlying(MemoryKind::kCuda)) {
      return fail(ErrorCode::kProtocol, "receive {} names {} bytes at {:#x}", posted.sequence, span.size,
                  span.address);
    }
  }
  return {};
}

}  // namespace

Result<std::optional<PostedReceives::Numbered>> PostedReceives::assemble(wire::ReceivePosted& part) {
  if (Status good = check(part); !good) return tl::unexpected(good.error());
  std::size_t bytes = part.spans.size() * sizeof(wire::ReceiveSpan);
  if (!partial_) {
    partial_.emplace(part.sequence, Receive{});
    bytes += kReceiveBytes;
  }
  std::vector<wire::ReceiveSpan>& spans = partial_->second.spans;
  const std::size_t kept = whole_.size() + withdrawn_.size();
  if (part.sequence != partial_->first || kept >= most_ || spans.size() + part.spans.size() > kMaxSpans) {
    return fail(ErrorCode::kProtocol, "receive {} posted with {} spans, {} has {}, {} of at most {} wait",
                part.sequence, part.spans.size(), partial_->first, spans.size(), kept, most_);
  }
  if (Status room = kept_.set(kept_.bytes() + bytes); !room) return tl::unexpected(room.error());
  if (spans.empty()) {
    spans = std::move(part.spans);
  } else {
    spans.insert(spans.end(), part.spans.begin(), part.spans.end());
  }
  if (part.more != 0) return std::nullopt;
  std::optional<Numbered> whole = std::exchange(partial_, std::nullopt);
  last_on_device_ = on_device(whole->second);
  return whole;
}

Status PostedReceives::add(Numbered receive) {
  const Sequence sequence = receive.first;
  if (run_of(sequence) == withdrawn_.end() && whole_.insert(std::move(receive)).second) return {};
  return fail(ErrorCode::kProtocol, "receive {} posted twice", sequence);
}

const PostedReceives::Receive* PostedReceives::find(Sequence sequence) const {
  static const Receive withdrawn{{}, true};
  const auto found = whole_.find(sequence);
  if (found != whole_.end()) return &found->second;
  return run_of(sequence) == withdrawn_.end() ? nullptr : &withdrawn;
}

std::optional<PostedReceives::Receive> PostedReceives::take(Sequence sequence) {
  auto found = whole_.extract(sequence);
  if (!found.empty()) {
    give_back(found.mapped());
    return std::move(found.mapped());
  }
  if (!take_withdrawn(sequence)) return std::nullopt;
  return Receive{{}, true};
}

bool PostedReceives::withdraw(Sequence sequence) {
  const auto found = whole_.extract(sequence);
  if (found.empty()) return false;
  give_back(found.mapped());
  auto run = withdrawn_.upper_bound(sequence);
  Sequence end = sequence + 1;
  if (run != withdrawn_.end() && run->first == end) {
    end = run->second;
    run = withdrawn_.erase(run);
  }
  if (run != withdrawn_.begin() && std::prev(run)->second == sequence) {
    std::prev(run)->second = end;
  } else {
    withdrawn_.emplace_hint(run, sequence, end);
  }
  return true;
}

PostedReceives::Runs::const_iterator PostedReceives::run_of(Sequence sequence) const {
  const auto after = withdrawn_.upper_bound(sequence);
  if (after == withdrawn_.begin() || std::prev(after)->second <= sequence) return withdrawn_.end();
  return std::prev(after);
}

// Its share of the budget.
void PostedReceives::give_back(const Receive& receive) {
  const std::uint64_t bytes = receive.spans.size() * sizeof(wire::ReceiveSpan) + kReceiveBytes;
  static_cast<void>(kept_.set(kept_.bytes() - bytes));  // less than before
}

bool PostedReceives::take_withdrawn(Sequence sequence) {
  const auto run = run_of(sequence);
  if (run == withdrawn_.end()) return false;
  const auto [first, end] = *run;
  withdrawn_.erase(run);
  if (first != sequence) withdrawn_.emplace(first, sequence);
  if (sequence + 1 != end) withdrawn_.emplace(sequence + 1, end);
  return true;
}

bool on_device(const PostedReceives::Receive& receive) {
  return std::ranges::any_of(receive.spans,
                             [](const auto& span) { return span.kind == to_underlying(MemoryKind::kCuda); });
}

}  // namespace p2p::engine
