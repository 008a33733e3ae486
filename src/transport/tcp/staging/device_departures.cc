// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/staging/device_departures.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace p2p::tcp {

using Use = device::Staging::Use;

bool DeviceDepartures::takes_write(const Batch& batch, bool from_device) const {
  if (to_device_.size() >= kMaxStagedWrites && ends_on_device(batch)) return false;
  // With as many on their way as there are slots, none is free before one of them has ended.
  return !from_device ||
         outgoing_.size() + sent_.size() < kStagingShare.slots[static_cast<std::size_t>(Use::kDeparture)];
}

void DeviceDepartures::post_write(const Batch& batch) {
  if (ends_on_device(batch)) note_write(batch);
  StagedMemory memory = StagedMemory::of(batch);
  if (Status fits = StagedMemory::check_size(memory.bytes); !fits) {
    completions_.push_back({batch.id, std::move(fits)});
    return;
  }
  take({.kind = Kind::kWrite, .batch = batch, .memory = std::move(memory)});
}

void DeviceDepartures::respond(std::uint64_t number, StagedMemory memory) {
  if (const Status fits = StagedMemory::check_size(memory.bytes); !fits) {
    return sender_.end_read(number, fits);
  }
  take({.kind = Kind::kResponse, .batch = {}, .number = number, .memory = std::move(memory)});
}

void DeviceDepartures::take(Outgoing outgoing) {
  outgoing_.push_back(std::move(outgoing));
  if (advance(outgoing_.back())) outgoing_.pop_back();
}

std::size_t DeviceDepartures::responses() const {
  return static_cast<std::size_t>(std::count_if(
      outgoing_.begin(), outgoing_.end(), [](const Outgoing& each) { return each.kind == Kind::kResponse; }));
}

// True once it has left for the sender, or ended.
bool DeviceDepartures::advance(Outgoing& outgoing) {
  if (!outgoing.packing && !begin(outgoing)) return outgoing.abandoned;
  if (!outgoing.slot->finished()) return false;
  return hand_over(outgoing);
}

// False: no slot is free, or it ended with an error (`abandoned`).
bool DeviceDepartures::begin(Outgoing& outgoing) {
  const auto taken = staging_->take(Use::kDeparture);
  if (!taken) {
    end(outgoing, tl::unexpected(taken.error()));
    outgoing.abandoned = true;
    return false;
  }
  outgoing.slot = *taken;
  if (outgoing.slot == nullptr) return false;
  Status usable = begin_device_accesses(outgoing.memory.owners, outgoing.accesses);
  if (usable) usable = check_alive(outgoing.batch);  // of a response: empty
  if (!usable) {
    staging_->give_back(*std::exchange(outgoing.slot, nullptr));
    end(outgoing, std::move(usable));
    outgoing.accesses.clear();
    outgoing.abandoned = true;
    return false;
  }
  staging_->pack(*outgoing.slot, outgoing.memory.pieces);
  outgoing.packing = true;
  return true;
}

bool DeviceDepartures::hand_over(Outgoing& outgoing) {
  Slot& slot = *outgoing.slot;
  outgoing.accesses.clear();
  outgoing.memory.owners.clear();
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

void DeviceDepartures::end(Outgoing& outgoing, Status outcome) {
  if (outgoing.kind == Kind::kResponse) {
    sender_.end_read(outgoing.number, outcome);
  } else {
    completions_.push_back({outgoing.batch.id, std::move(outcome)});
  }
}

bool DeviceDepartures::progress() {
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

void DeviceDepartures::completed(BatchId id) {
  std::erase(to_device_, id);
  const auto sent =
      std::find_if(sent_.begin(), sent_.end(), [id](const Sent& each) { return each.id == id; });
  if (sent == sent_.end()) return;
  staging_->give_back(*sent->slot);
  sent_.erase(sent);
}

bool DeviceDepartures::abandon(BatchId id) {
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

void DeviceDepartures::stop() {
  std::erase_if(outgoing_, [](const Outgoing& each) { return each.kind == Kind::kResponse; });
}

void DeviceDepartures::fail(const Error& why) {
  for (const Outgoing& outgoing : outgoing_) {
    if (outgoing.kind == Kind::kWrite) completions_.push_back({outgoing.batch.id, tl::unexpected(why)});
  }
  outgoing_.clear();
  sent_.clear();
  to_device_.clear();
}

}  // namespace p2p::tcp
