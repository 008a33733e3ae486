// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/peer_batches.h"

#include <utility>

#include "base/error.h"

namespace p2p::nccl_net {
namespace {
// A peer has 64 batches under way at most.
constexpr std::size_t kMaxPeerBatches = 256;
}  // namespace

Status PeerBatches::announced(const Chunk& chunk) {
  Write& write = writes_[chunk.batch];
  if (write.closed || writes_.size() > kMaxPeerBatches) {
    return fail(ErrorCode::kProtocol, "a piece of a write that has ended, or of one too many");
  }
  ++write.outstanding;
  write.closed = chunk.last;
  return {};
}

Result<Places> PeerBatches::find(Operation operation, const std::vector<RegionRange>& ranges) const {
  Places places;
  places.pieces.reserve(ranges.size());
  const RegionRange* last = nullptr;
  for (const RegionRange& range : ranges) {
    if (range.size == 0) continue;
    // The table belongs to all channels: it is asked for each run of pieces in one region, not for each
    // piece.
    const bool known = last != nullptr && range.region == last->region && range.key == last->key &&
                       places.owners.back()->contains(range.address, range.size);
    if (!known) {
      auto owner = regions_.find(operation, range.region, range.key, range.address, range.size);
      if (!owner) return tl::unexpected(owner.error());
      places.owners.push_back(std::move(*owner));
    }
    last = &range;
    // The region vouches for the range, whose address is one of this process.
    auto* const data = reinterpret_cast<std::byte*>(range.address);
    places.pieces.push_back({data, range.size, places.owners.back().get(), true});
  }
  return places;
}

Result<Places> PeerBatches::resolve(const Chunk& chunk) {
  auto places = find(Operation::kWrite, chunk.ranges);
  Write& write = writes_.at(chunk.batch);
  if (!places && write.status) write.status = tl::unexpected(places.error());
  return places;
}

void PeerBatches::landed(const Chunk& chunk, const Status& status) {
  Write& write = writes_.at(chunk.batch);
  --write.outstanding;
  if (!status && write.status) write.status = status;
  end_write(chunk.batch);
}

void PeerBatches::end_write(std::uint64_t number) {
  const auto found = writes_.find(number);
  if (!found->second.closed || found->second.outstanding != 0) return;
  messages_.send(Done{number, false, found->second.status});
  writes_.erase(found);
}

Status PeerBatches::take(const ReadRequest& read, Outgoing& outgoing) {
  if (reads_.contains(read.batch) || reads_.size() == kMaxPeerBatches) {
    return fail(ErrorCode::kProtocol, "read {} is under way already, or one too many", read.batch);
  }
  auto places = find(Operation::kRead, read.ranges);
  if (!places) {
    messages_.send(Done{read.batch, true, tl::unexpected(places.error())});
    return {};
  }
  auto out = std::make_shared<OutgoingBatch>();
  out->id = read.batch;
  out->response = true;
  for (const LocalRange& piece : places->pieces) out->left += piece.size;
  out->pieces = std::move(places->pieces);
  out->owners = std::move(places->owners);
  if (out->left == 0) return fail(ErrorCode::kProtocol, "a read of nothing");
  reads_[read.batch] = out;
  outgoing.add(std::move(out));
  return {};
}

Status PeerBatches::take(const Cancel& cancel, Outgoing& outgoing) {
  if (cancel.response) {
    // A read that is unknown here has been answered in full.
    const auto found = reads_.find(cancel.batch);
    if (found != reads_.end() && !found->second->closed) outgoing.close(*found->second);
    return {};
  }
  const auto found = writes_.find(cancel.batch);
  if (found == writes_.end() || found->second.closed) {
    return fail(ErrorCode::kProtocol, "a write is cancelled that is not under way");
  }
  found->second.closed = true;
  if (found->second.status) found->second.status = fail(ErrorCode::kCancelled, "the transfer was cancelled");
  end_write(cancel.batch);
  return {};
}

void PeerBatches::end_reads() {
  std::erase_if(reads_, [&](const auto& entry) {
    const OutgoingBatch& out = *entry.second;
    if (!out.quiet()) return false;
    if (out.failed) {
      messages_.send(Done{entry.first, true, tl::unexpected(*out.failed)});
    } else if (out.left != 0) {
      messages_.send(Done{entry.first, true, fail(ErrorCode::kCancelled, "the transfer was cancelled")});
    }
    return true;
  });
}

void PeerBatches::clear() {
  writes_.clear();
  reads_.clear();
}

}  // namespace p2p::nccl_net
