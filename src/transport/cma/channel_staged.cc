// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A channel's batches with device memory of this process. The system copies host memory only, so their bytes
// go through pinned slots; one is filled or emptied by a device while another is copied.
#include <utility>

#include "base/error.h"
#include "transport/cma/channel.h"
#include "transport/registration.h"

namespace p2p::cma {

// False: all slots are in use.
bool CmaChannel::post_staged(const Batch& batch) {
  using Use = device::Staging::Use;
  const auto slot = staging_->take(batch.operation == Operation::kWrite ? Use::kDeparture : Use::kAnswer);
  if (!slot) {
    done_.push_back({batch.id, tl::unexpected(slot.error())});
    return true;
  }
  if (*slot == nullptr) return false;
  if (Status begun = begin(batch, **slot); !begun) {
    staging_->give_back(**slot);
    done_.push_back({batch.id, std::move(begun)});
    return true;
  }
  staged_.push_back({.batch = batch, .slot = *slot});
  return true;
}

Status CmaChannel::begin(const Batch& batch, device::Staging::Slot& slot) {
  if (Status alive = check_alive(batch); !alive) return alive;
  const bool read = batch.operation == Operation::kRead;
  if (read) {
    if (Status copied = copy(batch, slot.data()); !copied) return copied;
  }
  pieces_.clear();
  batch.for_each_piece([&](const Segment& piece) {
    pieces_.push_back(device::StagedPiece::of(piece.local, piece.size, piece.registration->info().place));
  });
  if (read) {
    staging_->unpack(slot, pieces_);
  } else {
    staging_->pack(slot, pieces_);
  }
  return {};
}

// Those with which the device is through.
void CmaChannel::end_staged() {
  for (std::size_t i = 0; i < staged_.size();) {
    if (!staged_[i].slot->finished()) {
      ++i;
      continue;
    }
    const Staged staged = staged_[i];
    staged_.erase(staged_.begin() + static_cast<std::ptrdiff_t>(i));
    done_.push_back({staged.batch.id, finish(staged)});
    staging_->give_back(*staged.slot);
  }
}

Status CmaChannel::finish(const Staged& staged) {
  if (!staged.slot->status() || staged.batch.operation == Operation::kRead) return staged.slot->status();
  if (staged.abandoned) return fail(ErrorCode::kCancelled, "cancelled before it was copied");
  return copy(staged.batch, staged.slot->data());
}

// A write whose bytes did not leave yet is not made; a device that has begun reads the memory for moments
// more. All else is already copied.
void CmaChannel::abandon(BatchId id) {
  for (Staged& staged : staged_) staged.abandoned = staged.abandoned || staged.batch.id == id;
}

// Waits for devices.
void CmaChannel::fail_staged(const Error& why) {
  if (staging_) staging_->close();
  staging_.reset();
  for (const Staged& staged : staged_) done_.push_back({staged.batch.id, tl::unexpected(why)});
  staged_.clear();
}

}  // namespace p2p::cma
