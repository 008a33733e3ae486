// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "softnet/stager.h"

#include <utility>

#include "drivers/cuda/device.h"
#include "softnet/log.h"

namespace softnet {

using p2p::cuda::Event;
using p2p::cuda::Stream;

std::unique_ptr<Stager> Stager::open() {
  auto stager = std::make_unique<Stager>();
  stager->device_ = p2p::cuda::current_device();
  auto stream = Stream::open(stager->device_, Stream::Priority::kHigh);
  p2p::Status status;
  if (!stream) status = tl::unexpected(stream.error());
  if (stream) stager->stream_ = std::move(*stream);
  for (Event& event : stager->events_) {
    if (!status) break;
    auto made = Event::open(stager->device_);
    if (!made) status = tl::unexpected(made.error());
    if (made) event = std::move(*made);
  }
  if (!status) warn("connect: {}", status.error().message);
  return status && Pool::of_sends() != nullptr ? std::move(stager) : nullptr;
}

Stager::Progress Stager::start(std::size_t slot, const std::byte* data, std::size_t size,
                               Pool::Extent& extent) {
  const auto room = Pool::of_sends()->take(size);
  if (!room) return Progress::kNoRoom;
  extent = *room;
  const p2p::cuda::DeviceGuard guard(device_);
  p2p::Status status = guard.status();
  if (status) status = stream_.copy(at(extent), data, size);
  if (status) status = events_[slot].record(stream_.handle());
  if (!status) warn("send: {}", status.error().message);
  return status ? Progress::kStarted : Progress::kFailed;
}

Stager::Copied Stager::copied(std::size_t slot) const {
  const auto done = events_[slot].done();
  if (!done) warn("send: {}", done.error().message);
  if (!done) return Copied::kFailed;
  return *done ? Copied::kYes : Copied::kNotYet;
}

Stager::~Stager() {
  if (stream_) static_cast<void>(stream_.synchronize());
}

}  // namespace softnet
