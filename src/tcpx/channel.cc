// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "tcpx/channel.h"

#include <cstring>
#include <utility>

#include "base/error.h"

namespace tcpx {

using p2p::Result;
using p2p::Status;

void Chunk::end() {
  --memory->uses;
  --progress->left;
}

void Chunk::fail(const p2p::Error& error) {
  if (!progress->error) progress->error = error;
  end();
}

Result<const net::MemoryHandle*> Registrations::find(const std::shared_ptr<net::Comm>& comm,
                                                     const Chunk& chunk) {
  if (const auto found = handles_.find(chunk.mem_id); found != handles_.end()) return &found->second;
  const Memory& memory = *chunk.memory;
  net::PageRange range{memory.data, memory.size};
  if (memory.type == net::abi::kPointerCuda) range = net::page_range(memory.data, memory.size);
  auto handle = net::register_with(comm, range.data, range.size, memory.type);
  if (!handle) return tl::unexpected(handle.error());
  return &handles_.emplace(chunk.mem_id, std::move(*handle)).first->second;
}

Result<bool> SendChannel::progress() {
  bool moved = false;
  while (!waiting_.empty() && !window_.full()) {
    const Chunk& chunk = waiting_.front();
    const auto handle = registrations_.find(window_.comm(), chunk);
    if (!handle) return tl::unexpected(handle.error());
    const auto taken = window_.post(chunk.data, chunk.size, **handle);
    if (!taken) return tl::unexpected(taken.error());
    if (!*taken) break;
    posted_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    moved = true;
  }
  while (!posted_.empty()) {
    const auto done = window_.poll();
    if (!done) return tl::unexpected(done.error());
    if (!*done) break;
    posted_.front().end();
    posted_.pop_front();
    moved = true;
  }
  return moved;
}

void SendChannel::fail(const p2p::Error& error) {
  for (auto* chunks : {&posted_, &waiting_}) {
    for (Chunk& chunk : *chunks) chunk.fail(error);
    chunks->clear();
  }
}

Result<LandingDevice> LandingDevice::open(int device) {
  using p2p::kernels::Landing;
  LandingDevice made;
  auto stream = p2p::cuda::Stream::open(device, p2p::cuda::Stream::Priority::kHigh);
  if (!stream) return tl::unexpected(stream.error());
  made.stream = std::move(*stream);
  auto pinned = p2p::cuda::HostBuffer::allocate(Landing::kPinnedBytes);
  if (!pinned) return tl::unexpected(pinned.error());
  made.pinned = std::move(*pinned);
  std::memset(made.pinned.data(), 0, made.pinned.size());
  auto arrivals = p2p::cuda::DeviceBuffer::allocate(device, sizeof(std::uint32_t), true);
  if (!arrivals) return tl::unexpected(arrivals.error());
  made.arrivals = std::move(*arrivals);
  return made;
}

Result<ReceiveChannel> ReceiveChannel::open(net::RecvComm comm, unsigned window, int cuda_device) {
  std::optional<LandingDevice> device;
  if (cuda_device >= 0 && comm.unpack) {
    auto opened = LandingDevice::open(cuda_device);
    if (!opened) return tl::unexpected(opened.error());
    device = std::move(*opened);
  }
  return ReceiveChannel(std::move(comm), window, std::move(device));
}

ReceiveChannel::ReceiveChannel(net::RecvComm comm, unsigned window, std::optional<LandingDevice> device)
    : device_(std::move(device)), window_(std::move(comm), window) {
  if (!device_) return;
  landing_ = p2p::kernels::Landing({device_->stream.handle(), device_->pinned.data(),
                                    reinterpret_cast<std::uint32_t*>(device_->arrivals.data())});
}

ReceiveChannel::~ReceiveChannel() { finish_copies(); }

void ReceiveChannel::finish_copies() const {
  if (device_ && device_->stream) (void)device_->stream.synchronize();
}

Result<bool> ReceiveChannel::progress() {
  bool moved = false;
  for (const auto step :
       {&ReceiveChannel::post_next, &ReceiveChannel::take_arrival, &ReceiveChannel::consume_landed}) {
    while (true) {
      const auto stepped = (this->*step)();
      if (!stepped) return tl::unexpected(stepped.error());
      if (!*stepped) break;
      moved = true;
    }
  }
  return moved;
}

Result<bool> ReceiveChannel::post_next() {
  if (waiting_.empty() || window_.full()) return false;
  const Chunk& chunk = waiting_.front();
  const auto handle = registrations_.find(window_.comm().comm, chunk);
  if (!handle) return tl::unexpected(handle.error());
  const auto taken = window_.post(chunk.data, chunk.size, **handle);
  if (!taken) return tl::unexpected(taken.error());
  if (!*taken) return false;
  posted_.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
  return true;
}

Result<bool> ReceiveChannel::take_arrival() {
  if (landing_.full()) return false;
  const auto arrival = window_.poll();
  if (!arrival) return tl::unexpected(arrival.error());
  if (!*arrival) return false;
  const Chunk& chunk = posted_.front();
  if ((*arrival)->unpack && chunk.memory->type == net::abi::kPointerCuda && chunk.size != 0) {
    if (auto unpacked = unpack(**arrival, chunk); !unpacked) return tl::unexpected(unpacked.error());
  }
  landing_chunks_.push_back({std::move(posted_.front()), landing_.started()});
  posted_.pop_front();
  return true;
}

Status ReceiveChannel::unpack(const net::Arrival& arrival, const Chunk& chunk) {
  fragments_.clear();
  for (const net::abi::UnpackEntry& entry : arrival.entries) {
    fragments_.push_back({entry.source, entry.size, entry.destination});
  }
  if (!p2p::kernels::fills(fragments_, chunk.size)) {
    return p2p::fail(p2p::ErrorCode::kMessageTooLong,
                     "receive {} on {}: its fragments do not add up to the {} bytes that were posted",
                     arrival.sequence, window_.comm().comm->device(), chunk.size);
  }
  copies_.clear();
  const p2p::kernels::Block block{0, chunk.size, chunk.data};
  p2p::kernels::plan_unpack(window_.comm().unpack->pool, fragments_, {&block, 1}, copies_);
  if (const int code = landing_.start(copies_); code != 0) {
    return p2p::fail(p2p::ErrorCode::kSystem, "unpack receive {} on {}: CUDA error {}", arrival.sequence,
                     window_.comm().comm->device(), code);
  }
  return {};
}

Result<bool> ReceiveChannel::consume_landed() {
  if (landing_chunks_.empty() || landing_chunks_.front().list > landing_.finished()) return false;
  if (auto consumed = window_.consume(); !consumed) return tl::unexpected(consumed.error());
  landing_chunks_.front().chunk.end();
  landing_chunks_.pop_front();
  return true;
}

void ReceiveChannel::fail(const p2p::Error& error) {
  finish_copies();
  for (Landed& landed : landing_chunks_) landed.chunk.fail(error);
  landing_chunks_.clear();
  for (auto* chunks : {&posted_, &waiting_}) {
    for (Chunk& chunk : *chunks) chunk.fail(error);
    chunks->clear();
  }
}

}  // namespace tcpx
