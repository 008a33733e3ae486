// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "transport/nccl_net/channel.h"

/// What a NetChannel makes of the peer's messages. All of it came from outside and is checked.
namespace p2p::nccl_net {
namespace {

// A peer has 64 batches under way at most.
constexpr std::size_t kMaxPeerBatches = 256;
constexpr std::size_t kMaxEarly = 1024;

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

}  // namespace

Status NetChannel::on_control(std::span<const std::byte> bytes) {
  if (state_ == ChannelState::kFailed) return {};
  heard_at_ = Clock::now();
  rest_until_ = {};
  auto messages = unpack(bytes);
  Status status;
  if (!messages) status = tl::unexpected(messages.error());
  for (std::size_t index = 0; status && index < messages->size(); ++index) {
    status = hear(std::move((*messages)[index]));
  }
  if (!status) lose(status.error(), true);
  flush();
  return status;
}

Status NetChannel::hear(Message message) {
  if (state_ == ChannelState::kFailed) return {};
  if (const Bye* bye = std::get_if<Bye>(&message)) {
    lose({ErrorCode::kPeerGone, fmt::format("{}: {}", describe(), bye->reason)}, false);
    return {};
  }
  if (state_ == ChannelState::kReady) return take(std::move(message));
  if (early_.size() == kMaxEarly) {
    return fail(ErrorCode::kProtocol, "{}: too many messages before the comms are connected", describe());
  }
  early_.push_back(std::move(message));
  return {};
}

Status NetChannel::take(Message message) {
  return std::visit(Overloaded{[](Ping&) { return Status{}; }, [](Bye&) { return Status{}; },
                               [this](auto& other) { return take(std::move(other)); }},
                    message);
}

Status NetChannel::take(Chunk chunk) {
  moved_at_ = Clock::now();
  if (chunk.size > config_.flow.chunk_bytes) {
    return fail(ErrorCode::kProtocol, "{}: a message of {} bytes, more than our {}", describe(), chunk.size,
                config_.flow.chunk_bytes);
  }
  if (chunk.response) {
    const auto found = reads_.find(chunk.batch);
    const std::uint64_t left = found == reads_.end() ? 0 : found->second.bytes - found->second.announced;
    if (found == reads_.end() || found->second.ended || chunk.size > left ||
        chunk.last != (chunk.size == left)) {
      return fail(ErrorCode::kProtocol, "{}: {} bytes for a read that wants {}", describe(), chunk.size,
                  left);
    }
    found->second.announced += chunk.size;
    ++found->second.outstanding;
  } else {
    PeerWrite& write = peer_writes_[chunk.batch];
    if (write.closed || peer_writes_.size() > kMaxPeerBatches) {
      return fail(ErrorCode::kProtocol, "{}: a piece of a write that has ended, or of one too many",
                  describe());
    }
    ++write.outstanding;
    write.closed = chunk.last;
  }
  return incoming_->announce(std::move(chunk));
}

Result<Places> NetChannel::resolve(const std::vector<Range>& ranges) const {
  Places places;
  places.pieces.reserve(ranges.size());
  const Range* last = nullptr;
  for (const Range& range : ranges) {
    if (range.size == 0) continue;
    // The table belongs to all channels: it is asked for each run of pieces in one region, not for each
    // piece.
    const bool known = last != nullptr && range.region == last->region && range.key == last->key &&
                       places.owners.back()->contains(range.address, range.size);
    if (!known) {
      auto owner = config_.registrations->find(range.region, range.key, range.address, range.size);
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

Status NetChannel::take(const ReadRequest& read) {
  if (peer_reads_.contains(read.batch) || peer_reads_.size() == kMaxPeerBatches) {
    return fail(ErrorCode::kProtocol, "{}: read {} is under way already, or one too many", describe(),
                read.batch);
  }
  auto places = resolve(read.ranges);
  if (!places) {
    send_message(Done{read.batch, true, tl::unexpected(places.error())});
    return {};
  }
  auto out = std::make_shared<OutgoingBatch>();
  out->id = read.batch;
  out->response = true;
  for (const Piece& piece : places->pieces) out->left += piece.size;
  out->pieces = std::move(places->pieces);
  out->owners = std::move(places->owners);
  if (out->left == 0) return fail(ErrorCode::kProtocol, "{}: a read of nothing", describe());
  moved_at_ = Clock::now();
  peer_reads_[read.batch].out = out;
  outgoing_->add(std::move(out));
  return {};
}

Status NetChannel::take(const Done& done) {
  if (done.response) {
    const auto found = reads_.find(done.batch);
    if (found == reads_.end()) return {};  // all of it had come when it was cancelled
    if (done.status || found->second.ended) {
      return fail(ErrorCode::kProtocol, "{}: a read that ends without its bytes or an error", describe());
    }
    found->second.ended = done.status.error();
    return {};
  }
  const auto found = writes_.find(done.batch);
  if (found == writes_.end() || found->second.done || !found->second.out->closed) {
    return fail(ErrorCode::kProtocol, "{}: the end of a write that is not under way", describe());
  }
  found->second.done = done.status;
  return {};
}

Status NetChannel::take(const Cancel& cancel) {
  if (cancel.response) {
    // A read that is unknown here has been answered in full.
    const auto found = peer_reads_.find(cancel.batch);
    if (found != peer_reads_.end() && !found->second.out->closed) outgoing_->close(*found->second.out);
    return {};
  }
  const auto found = peer_writes_.find(cancel.batch);
  if (found == peer_writes_.end() || found->second.closed) {
    return fail(ErrorCode::kProtocol, "{}: a write is cancelled that is not under way", describe());
  }
  found->second.closed = true;
  if (found->second.status) found->second.status = fail(ErrorCode::kCancelled, "the transfer was cancelled");
  end_peer_write(cancel.batch);
  return {};
}

Result<Places> NetChannel::resolve(const Chunk& chunk) {
  if (chunk.response) {
    Read& read = reads_.at(chunk.batch);
    if (read.abandoned) return fail(ErrorCode::kCancelled, "the transfer was cancelled");
    return slice(read, chunk.size);
  }
  auto places = resolve(chunk.ranges);
  PeerWrite& write = peer_writes_.at(chunk.batch);
  if (!places && write.status) write.status = tl::unexpected(places.error());
  return places;
}

/// The next `bytes` of a read's local pieces.
Places NetChannel::slice(Read& read, std::uint64_t bytes) {
  Places places;
  while (bytes != 0) {
    const Piece& piece = read.pieces[read.next];
    const std::uint64_t size = std::min(bytes, piece.size - read.offset);
    places.pieces.push_back({piece.data + read.offset, size, piece.registration});
    bytes -= size;
    read.offset += size;
    if (read.offset != piece.size) continue;
    ++read.next;
    read.offset = 0;
  }
  return places;
}

void NetChannel::landed(const Chunk& chunk, const Status& status) {
  if (chunk.response) {
    Read& read = reads_.at(chunk.batch);
    --read.outstanding;
    if (!status && !read.failed) read.failed = status.error();
    return;
  }
  PeerWrite& write = peer_writes_.at(chunk.batch);
  --write.outstanding;
  if (!status && write.status) write.status = status;
  end_peer_write(chunk.batch);
}

void NetChannel::end_peer_write(std::uint64_t batch) {
  const auto found = peer_writes_.find(batch);
  if (!found->second.closed || found->second.outstanding != 0) return;
  send_message(Done{batch, false, found->second.status});
  peer_writes_.erase(found);
}

}  // namespace p2p::nccl_net
