// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cma/served_copies.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"

namespace p2p::cma {
namespace {

// Several times what a peer's channel has slots for.
constexpr std::size_t kMaxWaiting = 64;

}  // namespace

Status ServedCopies::add(CopyRequest request) {
  if (waiting_.size() == kMaxWaiting) {
    return fail(ErrorCode::kProtocol, "a cma peer asks for more than {} batches at once", kMaxWaiting);
  }
  if (std::ranges::find(waiting_, request.batch, &CopyRequest::batch) != waiting_.end()) {
    return fail(ErrorCode::kProtocol, "a cma peer asks for batch {} twice", request.batch);
  }
  waiting_.push_back(std::move(request));
  return {};
}

CopyOutcome ServedCopies::serve(const Copy& copy) {
  const CopyRequest request = std::move(waiting_.front());
  waiting_.pop_front();
  CopyOutcome outcome{.batch = request.batch, .status = resolve(request)};
  if (outcome.status) {
    const bool write = request.operation == Operation::kWrite;
    Batch batch{.operation = write ? Operation::kRead : Operation::kWrite, .segments = segments_};
    for (const Segment& segment : segments_) batch.bytes += segment.size;
    outcome.status = copy(batch);
  }
  segments_.clear();
  accesses_.clear();
  found_.clear();
  return outcome;
}

// The request's pieces as memory of this side and the peer's slot, with an access begun to each region.
Status ServedCopies::resolve(const CopyRequest& request) {
  found_.resize(request.regions.size());
  std::uint64_t slot = request.slot;
  for (const CopyRequest::Piece& piece : request.pieces) {
    const CopyRequest::Region& region = request.regions[piece.region];
    std::shared_ptr<Registration>& registration = found_[piece.region];
    if (!registration || !registration->contains(piece.address, piece.size)) {
      auto found = regions_.find(request.operation, region.id, region.key, piece.address, piece.size);
      if (!found) return tl::unexpected(std::move(found.error()));
      const std::span begun(&*found, 1);
      if (Status begin = begin_accesses(begun, accesses_); !begin) return begin;
      registration = std::move(*found);
    }
    // NOLINTNEXTLINE(performance-no-int-to-ptr): it lies within the region
    auto* const local = reinterpret_cast<std::byte*>(piece.address);
    segments_.push_back({local, slot, piece.size, registration.get(), nullptr});
    slot += piece.size;
  }
  return {};
}

}  // namespace p2p::cma
