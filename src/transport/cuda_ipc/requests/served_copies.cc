// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/requests/served_copies.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/underlying.h"

namespace p2p::cuda_ipc {
namespace {

// More than a peer's channel has under way.
constexpr std::size_t kMaxWaiting = 256;
constexpr std::size_t kMaxOffers = std::size_t{1} << 16;

}  // namespace

Result<std::shared_ptr<ServedCopies::Offered>> ServedCopies::add(RegionId region) {
  if (offers_.size() >= kMaxOffers) {
    return fail(ErrorCode::kProtocol, "a cuda_ipc peer offers more than {} regions", kMaxOffers);
  }
  auto offered = std::make_shared<Offered>();
  offers_.insert_or_assign(to_underlying(region), offered);
  return offered;
}

Status ServedCopies::lend(RegionId region, std::shared_ptr<const RemoteKey> key) {
  const auto offered = add(region);
  if (!offered) return tl::unexpected(offered.error());
  (*offered)->key = std::move(key);
  (*offered)->settled.store(true, std::memory_order_release);
  return {};
}

Status ServedCopies::on(RegionOffer offer) {
  const auto added = add(offer.region);
  if (!added) return tl::unexpected(added.error());
  const std::shared_ptr<Offered>& offered = *added;
  const RegionInfo region{.id = offer.region,
                          .key = {},
                          // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the peer's process
                          .base = reinterpret_cast<std::byte*>(offer.base),
                          .size = offer.size,
                          .place = {MemoryKind::kCuda, 0}};
  import_(region, std::move(offer.exported), [offered](Result<std::unique_ptr<RemoteKey>> key) {
    if (key) {
      offered->key = std::move(*key);
    } else {
      offered->error = std::move(key.error());
    }
    offered->settled.store(true, std::memory_order_release);
  });
  return {};
}

void ServedCopies::on(const RegionWithdrawn& withdrawn) { offers_.erase(to_underlying(withdrawn.region)); }

Status ServedCopies::on(CopyRequest request) {
  const auto offered = offers_.find(to_underlying(request.mine));
  if (offered == offers_.end()) {
    return fail(ErrorCode::kProtocol, "a cuda_ipc peer wants copies of region {}, which it has not offered",
                to_underlying(request.mine));
  }
  if (waiting_.empty() || waiting_.back().complete) {
    if (waiting_.size() == kMaxWaiting) {
      return fail(ErrorCode::kProtocol, "a cuda_ipc peer has asked for more than {} batches", kMaxWaiting);
    }
    waiting_.emplace_back().batch = request.batch;
  }
  Waiting& last = waiting_.back();
  last.segments += request.pieces.size();
  if (last.batch != request.batch || last.segments > most_segments_) {
    return fail(ErrorCode::kProtocol, "a cuda_ipc peer asks for batches that are mixed up or too long");
  }
  last.complete = request.last;
  last.requests.push_back(std::move(request));
  last.offers.push_back(offered->second);
  return {};
}

std::unique_ptr<ServedCopy> ServedCopies::take() {
  if (waiting_.empty() || !waiting_.front().complete) return nullptr;
  const bool settled = std::ranges::all_of(waiting_.front().offers, [](const auto& offer) {
    return offer->settled.load(std::memory_order_acquire);
  });
  if (!settled) return nullptr;
  const Waiting next = std::move(waiting_.front());
  waiting_.pop_front();
  auto copy = std::make_unique<ServedCopy>();
  copy->number = next.batch;
  copy->segments.reserve(next.segments);
  copy->operation =
      next.requests.front().operation == Operation::kWrite ? Operation::kRead : Operation::kWrite;
  for (std::size_t i = 0; i < next.requests.size() && copy->status; ++i) {
    copy->status = add(*copy, next.requests[i], *next.offers[i]);
  }
  return copy;
}

Status ServedCopies::add(ServedCopy& copy, const CopyRequest& request, const Offered& offered) const {
  if (!offered.key) return tl::unexpected(offered.error);
  if (request.pieces.empty()) return {};
  const CopyRequest::Piece& first = request.pieces.front();
  const Operation asked = copy.operation == Operation::kRead ? Operation::kWrite : Operation::kRead;
  auto found = regions_.find(asked, request.theirs, request.key, first.theirs, first.size);
  for (const CopyRequest::Piece& piece : request.pieces) {
    if (found && !(*found)->contains(piece.theirs, piece.size)) {
      found =
          regions_.find(asked, request.theirs, request.key, piece.theirs, piece.size);  // says what is wrong
    }
    if (!found) return tl::unexpected(found.error());
    // NOLINTNEXTLINE(performance-no-int-to-ptr): it lies within the region
    auto* const local = reinterpret_cast<std::byte*>(piece.theirs);
    copy.segments.push_back({local, piece.mine, piece.size, found->get(), offered.key.get()});
    copy.bytes += piece.size;
  }
  const std::shared_ptr<const Registration> region = *found;
  copy.keys.push_back(offered.key);
  AccessGuard access(region);
  if (!access) {
    return fail(ErrorCode::kNotFound, "region {} has been deregistered", to_underlying(request.theirs));
  }
  copy.accesses.push_back(std::move(access));
  return {};
}

}  // namespace p2p::cuda_ipc
