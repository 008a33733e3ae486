// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cma/device_path.h"

#include <utility>

#include "base/error.h"
#include "transport/registration.h"

namespace p2p::cma {
namespace {

using Use = device::Staging::Use;

}  // namespace

bool DevicePath::post(const Batch& batch) {
  const auto slot = staging_->take(batch.operation == Operation::kWrite ? Use::kDeparture : Use::kAnswer);
  if (!slot) {
    completions_.push_back({batch.id, tl::unexpected(slot.error())});
    return true;
  }
  if (*slot == nullptr) return false;
  if (Status begun = begin(batch, **slot); !begun) {
    staging_->give_back(**slot);
    completions_.push_back({batch.id, std::move(begun)});
    return true;
  }
  flights_.push_back({.batch = batch, .slot = *slot});
  return true;
}

Status DevicePath::begin(const Batch& batch, device::Staging::Slot& slot) {
  if (Status alive = check_alive(batch); !alive) return alive;
  const bool read = batch.operation == Operation::kRead;
  if (read) {
    if (Status copied = copy_(through(batch, slot)); !copied) return copied;
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

// The same with the slot in place of local memory. Used up before the next one is made.
Batch DevicePath::through(const Batch& batch, const device::Staging::Slot& slot) {
  segments_.clear();
  std::byte* staged = slot.data();
  batch.for_each_piece([&](Segment piece) {
    piece.local = std::exchange(staged, staged + piece.size);
    segments_.push_back(piece);
  });
  return {.id = batch.id, .operation = batch.operation, .segments = segments_, .bytes = batch.bytes};
}

bool DevicePath::progress() {
  bool moved = false;
  for (std::size_t i = 0; i < flights_.size();) {
    if (!staging_->finished(*flights_[i].slot)) {
      ++i;
      continue;
    }
    const Flight flight = flights_[i];
    flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(i));
    completions_.push_back({flight.batch.id, finish(flight)});
    staging_->give_back(*flight.slot);
    moved = true;
  }
  return moved;
}

Status DevicePath::finish(const Flight& flight) {
  if (!flight.slot->status() || flight.batch.operation == Operation::kRead) return flight.slot->status();
  if (flight.abandoned) return p2p::fail(ErrorCode::kCancelled, "cancelled before it was copied");
  return copy_(through(flight.batch, *flight.slot));
}

// A copy that has begun reads the memory for moments more.
void DevicePath::abandon(BatchId id) {
  for (Flight& flight : flights_) flight.abandoned = flight.abandoned || flight.batch.id == id;
}

void DevicePath::fail(const Error& why) {
  if (staging_) staging_->close();
  staging_.reset();
  for (const Flight& flight : flights_) completions_.push_back({flight.batch.id, tl::unexpected(why)});
  flights_.clear();
}

}  // namespace p2p::cma
