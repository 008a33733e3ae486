// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/copies/ring_copies.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "transport/copy_request.h"

namespace p2p::cuda_ipc {
namespace {

// A load of one short piece is copied by kernels that stand by, on both sides.
constexpr std::uint64_t kLeastLoad = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostLoad = kMostSlots * kRingSlotBytes;

// So many loads of a transfer overlap well.
constexpr std::uint64_t kLoads = 4;

// Loads of one block that the peer fills at a time, to be read. Of more none would be there early, as they
// share its way; parts of lists spend most of their time being told of.
constexpr std::ptrdiff_t kFilled = 2;

// One request for each load.
constexpr std::size_t kMostPieces = kMaxRequestPieces;

// Pieces lie in the ring as they do in memory here, as far as kernels care.
constexpr std::uint64_t kAlike = 16;

unsigned slots_for(std::uint64_t bytes) {
  return static_cast<unsigned>((bytes + kRingSlotBytes - 1) / kRingSlotBytes);
}

std::uint64_t place_after(std::uint64_t at, const std::byte* local) {
  return at + ((reinterpret_cast<std::uint64_t>(local) - at) & (kAlike - 1));
}

}  // namespace

RingJob::RingJob(Operation operation, std::vector<Segment> pieces)
    : operation_(operation), pieces_(std::move(pieces)) {
  std::uint64_t bytes = 0;
  for (const Segment& piece : pieces_) bytes += piece.size;
  load_bytes_ = std::clamp(bytes / kLoads, kLeastLoad, kMostLoad);
}

Status RingJob::cancelled() { return fail(ErrorCode::kCancelled, "the transfer was cancelled"); }

RingCopies::~RingCopies() {
  for (const RingLoad& load : loads_) load.ring->lose(load.slots);
  if (joined_) part();
}

void RingCopies::wait(bool waits) {
  if (std::exchange(waits_, waits) == waits) return;
  if (waits) {
    joined_->begin_wait();
  } else {
    joined_->end_wait();
  }
}

void RingCopies::part() {
  wait(false);
  joined_->part();
  joined_.reset();
}

void RingCopies::add(RingJob& job) {
  job.queued_ = true;
  jobs_.push_back(&job);
}

bool RingCopies::answered(std::uint64_t number, Status status) {
  const auto load = std::ranges::find(loads_, number, &RingLoad::number);
  if (load == loads_.end() || load->stage != RingLoad::Stage::kAsked) return false;
  load->stage = RingLoad::Stage::kAnswered;
  load->status = std::move(status);
  return true;
}

bool RingCopies::advance() {
  bool moved = false;
  for (auto load = loads_.begin(); load != loads_.end();) {
    if (!move(*load, moved)) {
      ++load;
      continue;
    }
    end(*load);
    load = loads_.erase(load);
  }
  return start_next() || moved;
}

// True once both sides have copied, or one could not.
bool RingCopies::move(RingLoad& load, bool& moved) {
  const bool writes = load.operation == Operation::kWrite;
  if (load.stage == RingLoad::Stage::kCopying) {
    if (!hands_.finished(load, load.status)) return false;
    moved = true;
    if (!load.status || !writes) return true;
    load.stage = RingLoad::Stage::kAsked;
    hands_.ask(load);
    return false;
  }
  if (load.stage == RingLoad::Stage::kAsked) return false;
  moved = true;
  if (!load.status || writes || !load.job->status_) return true;
  return !copy(load);
}

// False: it ends.
bool RingCopies::copy(RingLoad& load) {
  const auto started = hands_.start(load);
  if (!started) load.status = tl::unexpected(started.error());
  if (started && *started) load.stage = RingLoad::Stage::kCopying;
  return started.has_value();
}

void RingCopies::end(RingLoad& load) {
  if (!load.status) load.job->fail_with(load.status.error());
  --load.job->under_way_;
  load.ring->give(load.slots);
}

// One load of each job in turn, so that a short one does not wait for a long one.
bool RingCopies::start_next() {
  bool moved = false;
  yields_ = !waits_ && joined_ && joined_->awaited();
  for (std::size_t idle = 0; idle < jobs_.size();) {
    RingJob& job = *jobs_.front();
    jobs_.pop_front();
    const bool started = job.status_ && job.more() && start_load(job);
    job.queued_ = job.status_ && job.more();
    if (job.queued_) jobs_.push_back(&job);
    moved = moved || started || !job.queued_;
    idle = started || !job.queued_ ? 0 : idle + 1;
  }
  if (jobs_.empty() && joined_) part();
  return moved;
}

/// Slots.
unsigned RingCopies::may_take(const RingSlots& ring, Operation operation) const {
  unsigned held = 0;
  for (const RingLoad& load : loads_) held += load.ring.get() == &ring ? load.slots.count : 0;
  const auto is_filled = [](const RingLoad& load) {
    const bool asked = load.operation == Operation::kRead && load.stage == RingLoad::Stage::kAsked;
    return asked && load.pieces.size() == 1;
  };
  if (operation == Operation::kRead && std::ranges::count_if(loads_, is_filled) >= kFilled) return 0;
  return ring.share() - std::min(held, ring.share());
}

bool RingCopies::start_load(RingJob& job) {
  const auto ring = hands_.ring_for(job.pieces_[job.next_]);
  if (!ring) return job.fail_with(ring.error()), false;
  if (!joined_) {
    joined_ = *ring;
    joined_->join();
  }
  const unsigned most = may_take(**ring, job.operation_);
  if (most == 0) return false;
  std::optional<RingSlots::Run> slots;
  if (!yields_) slots = (*ring)->take(std::min(slots_for(job.load_bytes_), most));
  wait(!slots && loads_.empty());
  if (!slots) {
    if ((*ring)->lost()) job.fail_with({ErrorCode::kUnavailable, "the memory lent for it is no more"});
    return false;
  }
  const std::size_t next = job.next_;
  const std::uint64_t offset = job.offset_;
  RingLoad load = cut(job, std::min(job.load_bytes_, slots->bytes()));
  load.number = kNumbers | ++last_;
  load.ring = *ring;
  load.slots = *slots;
  for (RingLoad::Piece& piece : load.pieces) piece.at += slots->begin();
  if (job.operation_ == Operation::kWrite) {
    if (!copy(load) || load.stage != RingLoad::Stage::kCopying) {
      if (!load.status) job.fail_with(load.status.error());
      job.next_ = next;
      job.offset_ = offset;
      load.ring->give(*slots);
      return false;
    }
  } else {
    hands_.ask(load);
  }
  ++job.under_way_;
  loads_.push_back(std::move(load));
  return true;
}

// As much as a load may have, up to `most` bytes of the ring, of the pieces that lie in the same two regions.
RingLoad RingCopies::cut(RingJob& job, std::uint64_t most) const {
  const Segment& first = job.pieces_[job.next_];
  RingLoad load{.operation = job.operation_,
                .registration = first.registration,
                .key = first.key,
                .job = &job,
                .stage = RingLoad::Stage::kAsked};
  std::uint64_t at = 0;
  while (job.more() && load.pieces.size() < kMostPieces) {
    const Segment& piece = job.pieces_[job.next_];
    if (piece.registration != load.registration || piece.key != load.key) break;
    at = place_after(at, piece.local + job.offset_);
    if (at >= most) break;
    const std::uint64_t size = std::min(piece.size - job.offset_, most - at);
    load.pieces.push_back({piece.local + job.offset_, piece.remote + job.offset_, at, size});
    at += size;
    job.offset_ += size;
    if (job.offset_ == piece.size) {
      ++job.next_;
      job.offset_ = 0;
    }
  }
  return load;
}

}  // namespace p2p::cuda_ipc
