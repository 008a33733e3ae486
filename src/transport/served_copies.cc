// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/served_copies.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"

namespace p2p {

Status ServedCopies::add(CopyRequest request, std::shared_ptr<const OfferedRegion> mine) {
  if (waiting_.empty() || waiting_.back().complete) {
    if (waiting_.size() == limits_.batches) {
      return fail(ErrorCode::kProtocol, "a peer asks for more than {} batches of copies at once",
                  limits_.batches);
    }
    if (std::ranges::find(waiting_, request.batch, &Waiting::batch) != waiting_.end()) {
      return fail(ErrorCode::kProtocol, "a peer asks for batch {} twice", request.batch);
    }
    waiting_.emplace_back().batch = request.batch;
  }
  Waiting& last = waiting_.back();
  last.segments += request.pieces.size();
  for (const CopyRequest::Piece& piece : request.pieces) last.bytes += piece.size;
  if (last.batch != request.batch || last.segments > limits_.segments || last.bytes > limits_.bytes) {
    return fail(ErrorCode::kProtocol, "a peer asks for copies of batches that are mixed up or too long");
  }
  last.complete = request.last;
  last.requests.push_back({std::move(request), std::move(mine)});
  return {};
}

std::unique_ptr<ServedCopy> ServedCopies::take() {
  if (waiting_.empty() || !waiting_.front().complete) return nullptr;
  const bool settled = std::ranges::all_of(waiting_.front().requests, [](const Request& asked) {
    return !asked.mine || asked.mine->settled.load(std::memory_order_acquire);
  });
  if (!settled) return nullptr;
  const Waiting next = std::move(waiting_.front());
  waiting_.pop_front();
  auto copy = std::make_unique<ServedCopy>();
  copy->number = next.batch;
  copy->bytes = next.bytes;
  copy->segments.reserve(next.segments);
  const bool write = next.requests.front().request.operation == Operation::kWrite;
  copy->operation = write ? Operation::kRead : Operation::kWrite;
  for (const Request& asked : next.requests) {
    if (copy->status) copy->status = resolve(asked, *copy);
  }
  return copy;
}

// The request's pieces as memory of this side and the peer's, with an access begun to each region.
Status ServedCopies::resolve(const Request& asked, ServedCopy& copy) const {
  if (asked.mine && !asked.mine->key) return tl::unexpected(asked.mine->error);
  const RemoteKey* const key = asked.mine ? asked.mine->key.get() : nullptr;
  const Operation operation = copy.operation == Operation::kRead ? Operation::kWrite : Operation::kRead;
  std::vector<std::shared_ptr<Registration>> found(asked.request.regions.size());
  for (const CopyRequest::Piece& piece : asked.request.pieces) {
    const CopyRequest::Region& region = asked.request.regions[piece.region];
    std::shared_ptr<Registration>& registration = found[piece.region];
    if (!registration || !registration->contains(piece.theirs, piece.size)) {
      auto named = regions_.find(operation, region.id, region.key, piece.theirs, piece.size);
      if (!named) return tl::unexpected(std::move(named.error()));
      if (Status begun = begin_accesses(std::span(&*named, 1), copy.accesses); !begun) return begun;
      registration = std::move(*named);
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): it lies within the region
    auto* const local = reinterpret_cast<std::byte*>(piece.theirs);
    copy.segments.push_back({local, piece.mine, piece.size, registration.get(), key});
  }
  if (asked.mine) copy.keys.push_back(asked.mine->key);
  return {};
}

}  // namespace p2p
