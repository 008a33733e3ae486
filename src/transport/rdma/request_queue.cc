// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/rdma/request_queue.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/underlying.h"
#include "transport/rdma/region.h"

namespace p2p::rdma {
namespace {

// Enough to keep a link full; what is not taken goes over another channel.
constexpr std::size_t kMaxBatches = 64;
constexpr std::uint64_t kMaxBytes = std::uint64_t{8} << 20;

const RdmaRegistration& mine(const Segment& segment) {
  return static_cast<const RdmaRegistration&>(*segment.registration);
}
const RdmaKey& theirs(const Segment& segment) { return static_cast<const RdmaKey&>(*segment.key); }

}  // namespace

bool RequestQueue::accept(const Batch& batch) {
  if (works_.size() + ended_.size() >= kMaxBatches || (bytes_ != 0 && bytes_ + batch.bytes > kMaxBytes)) {
    return false;
  }
  Work work{.batch = batch};
  Status status = check(batch);
  if (!status) {
    ended_.push_back({batch.id, std::move(status)});
    return true;
  }
  restart(work);
  bytes_ += batch.bytes;
  works_.push_back(std::move(work));
  return true;
}

// The peer's device would refuse as well, but at the cost of the connection. Ours would not see that memory
// of a GPU was freed: it keeps what it was given.
Status RequestQueue::check(const Batch& batch) const {
  Status status = check_alive(batch);
  batch.for_each_piece([&](const Segment& piece) {
    if (!status) return;
    const RegionInfo& region = piece.key->info();
    if (!theirs(piece).has(ends_.remote_device)) {
      status = p2p::fail(ErrorCode::kProtocol, "access region {}: the peer gave no key for this path",
                         to_underlying(region.id));
    } else if (!region.contains(piece.remote, piece.size)) {
      status = p2p::fail(
          ErrorCode::kOutOfRange, "access {} bytes at {:#x} of region {}: it has {} bytes at {}", piece.size,
          piece.remote, to_underlying(region.id), region.size, static_cast<const void*>(region.base));
    }
  });
  return status;
}

void RequestQueue::restart(Work& work) const {
  work.segment = 0;
  work.offset = work.batch.skip;
  work.left = work.batch.bytes;
  work.started = work.posted = false;
  work.flush.reset();
}

Status RequestQueue::pump(Link& link) {
  while (true) {
    const unsigned room = std::min(link.window - outstanding(), kChain);
    if (room == 0) return {};
    fill(*link.chain, room);
    if (link.chain->size() == 0) return {};
    const std::uint64_t first = next_id_;
    next_id_ += link.chain->size();
    if (Status posted = link.chain->post(*link.pair, first); !posted) return posted;
  }
}

void RequestQueue::fill(verbs::Chain& chain, unsigned room) {
  for (; next_ < works_.size(); ++next_) {
    Work& work = works_[next_];
    // A request is one batch's, so that its failure is.
    chain.seal();
    if (!add(work, chain, room)) break;
    work.posted = true;
    work.last_id = next_id_ + chain.size() - 1;
  }
  if (chain.size() == 0) done_until(done_id_ - 1);  // batches without bytes end at once
}

// False: the chain is full.
bool RequestQueue::add(Work& work, verbs::Chain& chain, unsigned room) const {
  const verbs::Verb verb =
      work.batch.operation == Operation::kWrite ? verbs::Verb::kWrite : verbs::Verb::kRead;
  while (work.left != 0) {
    const Segment& segment = work.batch.segments[work.segment];
    const std::uint64_t size = std::min(work.left, segment.size - work.offset);
    if (size != 0) {
      if (chain.size() >= room) return false;
      const verbs::Extent extent{.local = segment.local + work.offset,
                                 .remote = segment.remote + work.offset,
                                 .size = static_cast<std::uint32_t>(size),
                                 .local_key = mine(segment).local_key(ends_.local_device),
                                 .remote_key = theirs(segment).remote_key(ends_.remote_device)};
      chain.add(verb, extent);
      if (!std::exchange(work.started, true)) work.first_id = next_id_ + chain.size() - 1;
      if (verb == verbs::Verb::kWrite && segment.key->info().place.kind == MemoryKind::kCuda) {
        work.flush = {ends_.scratch, extent.remote, 1, ends_.scratch_key, extent.remote_key};
      }
    }
    work.left -= size;
    work.offset = 0;
    ++work.segment;
  }
  // A read answered by the GPU's memory has pushed all writes before it there.
  if (!work.flush) return true;
  if (chain.size() >= room) return false;
  chain.seal();
  chain.add(verbs::Verb::kRead, *work.flush);
  work.flush.reset();
  return true;
}

Status RequestQueue::probe(Link& link) {
  if (outstanding() == link.window || !link.chain->add_probe()) return {};
  return link.chain->post(*link.pair, next_id_++);
}

void RequestQueue::done_until(std::uint64_t id) {
  done_id_ = std::max(done_id_, id + 1);
  while (!works_.empty() && works_.front().posted && works_.front().last_id < done_id_) end(0);
}

void RequestQueue::end(std::size_t index) {
  Work& work = works_[index];
  Status status;
  if (work.error) status = tl::unexpected(std::move(*work.error));
  ended_.push_back({work.batch.id, std::move(status)});
  bytes_ -= work.batch.bytes;
  works_.erase(works_.begin() + static_cast<std::ptrdiff_t>(index));
  if (next_ > index) --next_;
}

void RequestQueue::fail(std::uint64_t id, const Error& error) {
  for (Work& work : works_) {
    if (!work.started || id < work.first_id || (work.posted && id > work.last_id)) continue;
    work.error = error;
    return;
  }
}

void RequestQueue::rewind() {
  done_id_ = next_id_;
  next_ = 0;
  for (std::size_t i = 0; i < works_.size();) {
    if (works_[i].error) {
      end(i);
    } else {
      restart(works_[i++]);
    }
  }
}

void RequestQueue::fail_all(const Error& error) {
  done_id_ = next_id_;
  while (!works_.empty()) {
    if (!works_.front().error) works_.front().error = error;
    end(0);
  }
}

void RequestQueue::abandon(BatchId id) {
  const auto found =
      std::ranges::find_if(works_, [id](const Work& work) { return work.batch.id == id && !work.posted; });
  if (found == works_.end()) return;
  found->error = Error{ErrorCode::kCancelled, "cancelled before its end"};
  found->left = 0;
  found->flush.reset();
  // Requests that the device has cannot be taken back.
  if (!found->started) return end(static_cast<std::size_t>(found - works_.begin()));
}

bool RequestQueue::take(std::vector<Completion>& completions) {
  if (ended_.empty()) return false;
  std::ranges::move(ended_, std::back_inserter(completions));
  ended_.clear();
  return true;
}

}  // namespace p2p::rdma
