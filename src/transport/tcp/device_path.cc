// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/device_path.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace p2p::tcp {
namespace {

using Use = device::Staging::Use;

constexpr std::size_t kDepartureSlots = 16;
constexpr std::size_t kAnswerSlots = 8;
constexpr device::Staging::Most kSlots{kDepartureSlots, kMaxStagedWrites, kAnswerSlots};

// For what a peer named. kNotFound: one of them was deregistered, or its memory freed.
Status begin_accesses(const std::vector<std::shared_ptr<Registration>>& guards) {
  Status status;
  std::size_t begun = 0;
  for (; status && begun != guards.size(); ++begun) {
    if (!guards[begun]->begin_access()) {
      status = fail(ErrorCode::kNotFound, "the region was deregistered during the transfer");
      break;
    }
    status = guards[begun]->check_alive();
  }
  if (status) return {};
  while (begun != 0) guards[--begun]->end_access();
  return status;
}

void end_accesses(const std::vector<std::shared_ptr<Registration>>& guards) {
  for (const auto& registration : guards) registration->end_access();
}

Status check_size(std::uint64_t bytes) {
  if (bytes <= kStagedBytes) return {};
  return fail(ErrorCode::kUnavailable,
              "{} bytes for device memory in one batch, {} at most: lower UCCL_P2P_BATCH_BYTES", bytes,
              kStagedBytes);
}

}  // namespace

void StagedMemory::add(std::byte* data, std::uint64_t size, MemoryPlace place) {
  bytes += size;
  pieces.push_back(device::StagedPiece::of(data, size, place));
}

StagedMemory staged_memory(const Batch& batch) {
  StagedMemory memory;
  batch.for_each_piece(
      [&](const Segment& piece) { memory.add(piece.local, piece.size, piece.registration->info().place); });
  return memory;
}

bool ends_on_device(const Batch& batch) {
  bool on_device = false;
  batch.for_each_piece([&](const Segment& piece) {
    on_device = on_device || piece.key->info().place.kind == MemoryKind::kCuda;
  });
  return on_device;
}

std::size_t DevicePath::lists() { return device::Staging::lists(kSlots); }

DevicePath::DevicePath(std::shared_ptr<device::StagingPool> pool, Sender& sender,
                       std::vector<Completion>& completions)
    : pool_(std::move(pool)),
      sender_(sender),
      completions_(completions),
      staging_(std::make_shared<device::Staging>(pool_, kSlots)) {
  pool_->add_stream();
}

DevicePath::~DevicePath() { pool_->remove_stream(); }

bool DevicePath::takes_write(const Batch& batch, bool from_device) const {
  if (to_device_.size() >= kMaxStagedWrites && ends_on_device(batch)) return false;
  // With as many on their way as there are slots, none is free before one of them has ended.
  return !from_device || outgoing_.size() + sent_.size() < kDepartureSlots;
}

bool DevicePath::post_write(const Batch& batch, StagedMemory memory) {
  if (!takes_write(batch, true)) return false;
  if (ends_on_device(batch)) note_write(batch);
  if (Status fits = check_size(memory.bytes); !fits) {
    completions_.push_back({batch.id, std::move(fits)});
    return true;
  }
  outgoing_.push_back({.kind = Kind::kWrite, .batch = batch, .memory = std::move(memory)});
  if (advance(outgoing_.back())) outgoing_.pop_back();
  return true;
}

Result<DevicePath::Slot*> DevicePath::slot_for_answer(std::uint64_t bytes) {
  if (const Status fits = check_size(bytes); !fits) return tl::unexpected(fits.error());
  return staging_->take(Use::kAnswer);
}

void DevicePath::respond(std::uint64_t number, StagedMemory memory) {
  if (const Status fits = check_size(memory.bytes); !fits) return sender_.end_read(number, fits);
  outgoing_.push_back({.kind = Kind::kResponse, .batch = {}, .number = number, .memory = std::move(memory)});
  if (advance(outgoing_.back())) outgoing_.pop_back();
}

std::size_t DevicePath::responses() const {
  return static_cast<std::size_t>(std::count_if(
      outgoing_.begin(), outgoing_.end(), [](const Outgoing& each) { return each.kind == Kind::kResponse; }));
}

// True once it has left for the sender, or ended.
bool DevicePath::advance(Outgoing& outgoing) {
  if (!outgoing.packing && !begin(outgoing)) return outgoing.abandoned;
  if (!staging_->finished(*outgoing.slot)) return false;
  return hand_over(outgoing);
}

// False: no slot is free, or it ended with an error (`abandoned`).
bool DevicePath::begin(Outgoing& outgoing) {
  const auto taken = staging_->take(Use::kDeparture);
  if (!taken) {
    end(outgoing, tl::unexpected(taken.error()));
    outgoing.abandoned = true;
    return false;
  }
  outgoing.slot = *taken;
  if (outgoing.slot == nullptr) return false;
  Status usable = begin_accesses(outgoing.memory.guards);
  if (usable) usable = check_alive(outgoing.batch);  // of a response: empty
  if (!usable) {
    staging_->give_back(*std::exchange(outgoing.slot, nullptr));
    end(outgoing, std::move(usable));
    outgoing.abandoned = true;
    return false;
  }
  staging_->pack(*outgoing.slot, outgoing.memory.pieces);
  outgoing.packing = true;
  return true;
}

bool DevicePath::hand_over(Outgoing& outgoing) {
  Slot& slot = *outgoing.slot;
  end_accesses(std::exchange(outgoing.memory.guards, {}));
  Status packed = slot.status();
  if (packed && outgoing.abandoned) packed = p2p::fail(ErrorCode::kCancelled, "cancelled before it was sent");
  if (!packed) {
    staging_->give_back(slot);
    end(outgoing, std::move(packed));
    return true;
  }
  if (outgoing.kind == Kind::kWrite) {
    if (!sender_.takes_write(outgoing.batch.bytes)) return false;
    sender_.post_write(outgoing.batch, slot.data());
    sent_.push_back({outgoing.batch.id, &slot});
    return true;
  }
  // The slot is free again when the sender lets go of the frame.
  std::shared_ptr<void> keep(
      &slot, [staging = staging_](void* sent) { staging->give_back(*static_cast<Slot*>(sent)); });
  sender_.respond(outgoing.number, {slot.data(), outgoing.memory.bytes}, std::move(keep));
  return true;
}

void DevicePath::end(Outgoing& outgoing, Status outcome) {
  if (outgoing.kind == Kind::kResponse) {
    sender_.end_read(outgoing.number, outcome);
  } else {
    completions_.push_back({outgoing.batch.id, std::move(outcome)});
  }
}

bool DevicePath::progress() {
  bool moved = false;
  for (std::size_t i = 0; i < outgoing_.size();) {
    if (!advance(outgoing_[i])) {
      ++i;
      continue;
    }
    outgoing_.erase(outgoing_.begin() + static_cast<std::ptrdiff_t>(i));
    moved = true;
  }
  return moved;
}

void DevicePath::completed(BatchId id) {
  std::erase(to_device_, id);
  const auto sent =
      std::find_if(sent_.begin(), sent_.end(), [id](const Sent& each) { return each.id == id; });
  if (sent == sent_.end()) return;
  staging_->give_back(*sent->slot);
  sent_.erase(sent);
}

Result<DevicePath::Slot*> DevicePath::slot_for_arrival(std::uint64_t bytes) {
  if (const Status fits = check_size(bytes); !fits) return tl::unexpected(fits.error());
  const auto taken = staging_->take(Use::kArrival);
  if (!taken || *taken != nullptr) return taken;
  return p2p::fail(ErrorCode::kUnavailable, "more than {} writes to device memory under way on one stream",
                   kMaxStagedWrites);
}

void DevicePath::landed(Slot* slot, StagedMemory memory, Status outcome, std::uint64_t bytes) {
  Arrived arrived{.slot = slot, .guards = {}, .outcome = std::move(outcome), .bytes = bytes};
  if (slot != nullptr && arrived.outcome) arrived.outcome = begin_accesses(memory.guards);
  if (slot != nullptr && arrived.outcome) {
    staging_->unpack(*slot, memory.pieces);
    arrived.guards = std::move(memory.guards);
  }
  landed_.push_back(std::move(arrived));
}

std::optional<DevicePath::Landed> DevicePath::next_landed() {
  if (landed_.empty()) return std::nullopt;
  Arrived& first = landed_.front();
  if (first.slot != nullptr) {
    if (!staging_->finished(*first.slot)) return std::nullopt;
    end_accesses(first.guards);
    if (first.outcome) first.outcome = first.slot->status();
    staging_->give_back(*first.slot);
  }
  Landed landed{.outcome = std::move(first.outcome), .bytes = first.bytes};
  landed_.pop_front();
  return landed;
}

Status DevicePath::unpack_answer(Slot& slot, const Batch& batch) {
  if (Status alive = check_alive(batch); !alive) return alive;
  staging_->unpack(slot, staged_memory(batch).pieces);
  return {};
}

bool DevicePath::abandon(BatchId id) {
  const auto found = std::find_if(outgoing_.begin(), outgoing_.end(), [id](const Outgoing& each) {
    return each.kind == Kind::kWrite && each.batch.id == id;
  });
  if (found == outgoing_.end()) return false;
  if (found->packing) {
    // A copy that has begun reads the memory for moments more.
    found->abandoned = true;
    return true;
  }
  completions_.push_back({id, p2p::fail(ErrorCode::kCancelled, "cancelled before it was sent")});
  outgoing_.erase(found);
  return true;
}

void DevicePath::fail(const Error& why) {
  if (staging_) staging_->close();
  staging_.reset();
  for (Outgoing& outgoing : outgoing_) {
    if (outgoing.packing) end_accesses(outgoing.memory.guards);
    if (outgoing.kind == Kind::kWrite) completions_.push_back({outgoing.batch.id, tl::unexpected(why)});
  }
  for (const Arrived& arrived : landed_) end_accesses(arrived.guards);
  outgoing_.clear();
  landed_.clear();
  sent_.clear();
  to_device_.clear();
}

}  // namespace p2p::tcp
