// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/staging/device_arrivals.h"

#include <utility>

#include "base/error.h"

namespace p2p::tcp {

Result<std::byte*> DeviceArrivals::begin(StagedMemory memory) {
  if (const Status fits = StagedMemory::check_size(memory.bytes); !fits) return tl::unexpected(fits.error());
  const auto slot = staging_->take(device::Staging::Use::kArrival);
  if (!slot) return tl::unexpected(slot.error());
  if (*slot == nullptr) {
    return fail(ErrorCode::kUnavailable, "more than {} writes to device memory under way on one stream",
                kMaxStagedWrites);
  }
  coming_ = Coming{*slot, std::move(memory)};
  return (*slot)->data();
}

void DeviceArrivals::landed(Status outcome, std::uint64_t bytes) {
  Landed landed{.outcome = std::move(outcome), .bytes = bytes};
  if (auto coming = std::exchange(coming_, std::nullopt)) {
    landed.slot = coming->slot;
    if (landed.outcome) landed.outcome = begin_device_accesses(coming->memory.owners, landed.accesses);
    if (landed.outcome) staging_->unpack(*landed.slot, coming->memory.pieces);
  }
  landed_.push_back(std::move(landed));
}

std::optional<DeviceArrivals::Ended> DeviceArrivals::next_ended() {
  if (landed_.empty()) return std::nullopt;
  Landed& first = landed_.front();
  if (first.slot != nullptr) {
    if (!first.slot->finished()) return std::nullopt;
    if (first.outcome) first.outcome = first.slot->status();
    staging_->give_back(*first.slot);
  }
  Ended ended{.outcome = std::move(first.outcome), .bytes = first.bytes};
  landed_.pop_front();
  return ended;
}

void DeviceArrivals::clear() {
  coming_.reset();
  landed_.clear();
}

}  // namespace p2p::tcp
