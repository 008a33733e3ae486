// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "softnet/stager.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "drivers/cuda/device.h"
#include "softnet/log.h"

namespace softnet {

using p2p::move_into;
using p2p::cuda::HostBuffer;
using p2p::cuda::Stream;

namespace {

constexpr std::size_t kLine = 64;
// A device whose work failed writes no word: after so long the driver is asked.
constexpr std::chrono::milliseconds kAskAfter{2};

}  // namespace

std::unique_ptr<Stager> Stager::open() {
  auto stager = std::make_unique<Stager>();
  if (!settings().cuda) return Pool::of_sends() != nullptr ? std::move(stager) : nullptr;
  stager->device_ = p2p::cuda::current_device();
  p2p::Status status = move_into(stager->words_, HostBuffer::allocate(kSlots * kLine));
  if (status) {
    std::memset(stager->words_.data(), 0, stager->words_.size());
    status = move_into(stager->stream_, Stream::open(stager->device_, Stream::Priority::kHigh));
  }
  if (!status) warn("connect: {}", status.error().message);
  return status && Pool::of_sends() != nullptr ? std::move(stager) : nullptr;
}

std::uint32_t* Stager::word_of(std::size_t slot) const {
  return reinterpret_cast<std::uint32_t*>(words_.data() + slot * kLine);
}

Stager::Progress Stager::start(std::size_t slot, const std::byte* data, std::size_t size,
                               Pool::Extent& extent) {
  const auto room = Pool::of_sends()->take(size);
  if (!room) return Progress::kNoRoom;
  extent = *room;
  if (device_ < 0) {
    std::memcpy(at(extent), data, size);
    return Progress::kStarted;
  }
  const p2p::cuda::DeviceGuard guard(device_);
  p2p::Status status = guard.status();
  if (status) status = stream_.copy(at(extent), data, size);
  if (status) status = stream_.signal(word_of(slot), ++turns_[slot]);
  asked_[slot] = Clock::now();
  if (!status) warn("send: {}", status.error().message);
  return status ? Progress::kStarted : Progress::kFailed;
}

Stager::Copied Stager::copied(std::size_t slot) {
  if (device_ < 0) return Copied::kYes;
  const std::atomic_ref<std::uint32_t> word(*word_of(slot));
  if (word.load(std::memory_order_acquire) == turns_[slot]) return Copied::kYes;
  const auto now = Clock::now();
  if (now - asked_[slot] < kAskAfter) return Copied::kNotYet;
  asked_[slot] = now;
  const auto idle = stream_.idle();
  if (!idle) warn("send: {}", idle.error().message);
  return idle ? Copied::kNotYet : Copied::kFailed;
}

Stager::~Stager() {
  if (stream_) static_cast<void>(stream_.synchronize());
}

}  // namespace softnet
