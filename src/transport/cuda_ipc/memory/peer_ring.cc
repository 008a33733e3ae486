// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/memory/peer_ring.h"

#include <algorithm>

#include "base/error.h"
#include "drivers/cuda/device.h"
#include "transport/cuda_ipc/memory/chunk_fetch.h"
#include "transport/cuda_ipc/memory/regions.h"

namespace p2p::cuda_ipc {

Result<std::shared_ptr<PeerRing>> PeerRing::borrow(const Ticket& ticket, const socket::Place& place) {
  auto lent = cuda_ipc::borrow(ticket, 2, place);
  if (!lent) return tl::unexpected(std::move(lent.error()));
  const std::shared_ptr<PeerRing> ring(new PeerRing);
  ByteReader in(lent->words);
  ring->number_ = in.get<std::uint64_t>();
  std::ranges::copy(in.take(ring->token_.size()), ring->token_.begin());
  cuda::DeviceUuid uuid{};
  std::ranges::copy(in.take(uuid.size()), uuid.begin());
  ring->base_ = in.get<std::uint64_t>();
  if (!in.ok() || in.left() != 0 || ring->base_ + kLentBytes < ring->base_) {
    return fail(ErrorCode::kProtocol, "borrow a peer's device memory: an answer that cannot be read");
  }
  ring->device_ = cuda::find_device(uuid).value_or(kHiddenDevice);
  auto words = RingMemory::open(lent->descriptors[1], kRingWords);
  if (!words) return tl::unexpected(std::move(words.error()));
  ring->words_ = std::move(*words);
  auto window = cuda::Window::reserve(kLentBytes);
  if (!window) return tl::unexpected(std::move(window.error()));
  ring->memory_ = std::move(*window);
  if (const Status added = ring->memory_.add(lent->descriptors[0], kLentBytes); !added) {
    return tl::unexpected(added.error());
  }
  ring->owner_ = std::move(lent->owner);
  return ring;
}

Result<std::byte*> PeerRing::reach(int device) const {
  const MutexLock lock(mutex_);
  if (allowed_.contains(device)) return memory_.data();
  if (device_ != kHiddenDevice && !cuda::reaches(device, device_)) {
    return fail(ErrorCode::kUnavailable, "CUDA devices {} and {} cannot reach each other's memory", device,
                device_);
  }
  if (const Status allowed = memory_.allow(device); !allowed) return tl::unexpected(allowed.error());
  allowed_.insert(device);
  return memory_.data();
}

Status RingSource::fetch(const std::set<int>& devices) {
  const MutexLock fetching(fetching_);
  std::shared_ptr<PeerRing> ring;
  {
    const MutexLock lock(mutex_);
    if (ring_ && ring_->whole()) ring = ring_;
  }
  if (!ring) {
    auto borrowed = PeerRing::borrow(ticket_.ticket, place_);
    const MutexLock lock(mutex_);
    if (!borrowed) {
      error_ = borrowed.error();
      return tl::unexpected(borrowed.error());
    }
    ring_ = ring = std::move(*borrowed);
  }
  Status status;
  for (const int device : devices) {
    const auto reached = ring->reach(device);
    if (!reached) status = tl::unexpected(reached.error());
  }
  return status;
}

Result<std::shared_ptr<PeerRing>> RingSource::ring_for(int device) const {
  std::shared_ptr<PeerRing> ring;
  {
    const MutexLock lock(mutex_);
    if (!ring_) return tl::unexpected(error_);
    ring = ring_;
  }
  if (ring->lost()) return fail(ErrorCode::kUnavailable, "the memory lent for that went with a connection");
  if (const auto reached = ring->reach(device); !reached) return tl::unexpected(reached.error());
  return ring;
}

std::shared_ptr<RingSource> RingSources::of(const RingTicket& ticket) {
  const MutexLock lock(mutex_);
  std::erase_if(sources_, [](const auto& each) { return each.second.expired(); });
  auto source = sources_[ticket].lock();
  if (!source) sources_[ticket] = source = std::make_shared<RingSource>(ticket, place_);
  return source;
}

std::vector<std::shared_ptr<RingSource>> RingSources::all() {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<RingSource>> sources;
  for (const auto& [ticket, weak] : sources_) {
    if (auto source = weak.lock()) sources.push_back(std::move(source));
  }
  return sources;
}

}  // namespace p2p::cuda_ipc
