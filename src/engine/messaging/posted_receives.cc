// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/messaging/posted_receives.h"

#include <algorithm>

#include "base/error.h"
#include "base/underlying.h"
#include "p2p/memory.h"

namespace p2p::engine {
namespace {

// Of one receive. A peer that posts more is broken, or wants to fill the memory of this process.
constexpr std::size_t kMaxSpans = std::size_t{1} << 22;

// Keeps the sum of kMaxSpans sizes within 64 bits.
constexpr std::uint64_t kMaxSpanBytes = std::uint64_t{1} << 40;

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
  if (!partial_) partial_.emplace(part.sequence, Receive{});
  std::vector<wire::ReceiveSpan>& spans = partial_->second.spans;
  if (part.sequence != partial_->first || whole_.size() >= most_ ||
      spans.size() + part.spans.size() > kMaxSpans) {
    return fail(ErrorCode::kProtocol, "receive {} posted with {} spans, {} has {}, {} wait", part.sequence,
                part.spans.size(), partial_->first, spans.size(), whole_.size());
  }
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
  if (whole_.insert(std::move(receive)).second) return {};
  return fail(ErrorCode::kProtocol, "receive {} posted twice", sequence);
}

PostedReceives::Receive* PostedReceives::find(Sequence sequence) {
  const auto found = whole_.find(sequence);
  return found == whole_.end() ? nullptr : &found->second;
}

std::optional<PostedReceives::Receive> PostedReceives::take(Sequence sequence) {
  auto found = whole_.extract(sequence);
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped());
}

bool on_device(const PostedReceives::Receive& receive) {
  return std::ranges::any_of(receive.spans,
                             [](const auto& span) { return span.kind == to_underlying(MemoryKind::kCuda); });
}

}  // namespace p2p::engine
