// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/staging_pool.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "drivers/cuda/memory.h"
#include "drivers/cuda/place.h"
#include "drivers/topology/topology.h"

namespace p2p::device {
namespace {

// Allocated at once: few enough that other calls of the driver do not wait long.
constexpr std::size_t kSlab = 4;
// With these a stream can start; copiers come next, and then the other slots.
constexpr std::size_t kFirstSlotsPerStream = 1;
// Streams that carry one transfer after the other have an order each in this time.
constexpr std::chrono::microseconds kStandbyIdle{500};

std::optional<int> node_of(int device) {
  if (device < 0) return std::nullopt;
  const auto address = cuda::bus_id_of(device);
  return address ? topology::numa_node_of(*address) : -1;
}

}  // namespace

Result<std::shared_ptr<std::byte>> StagingPool::allocate_pinned(std::size_t bytes, int device) {
  auto buffer = cuda::HostBuffer::allocate(bytes, node_of(device));
  if (!buffer) return tl::unexpected(std::move(buffer.error()));
  const auto owner = std::make_shared<cuda::HostBuffer>(std::move(*buffer));
  return std::shared_ptr<std::byte>(owner, owner->data());
}

StagingPool::StagingPool(const Limits& limits, Allocate allocate, Copiers::Open open)
    : limits_(limits),
      allocate_(std::move(allocate)),
      copiers_(
          limits.copier, open ? std::move(open) : [this](int device, const Copier::Limits& copier) {
            return open_copier(device, copier);
          }) {}

// One kernel serves all streams: it has the whole way to the host for the first of them, and the GPU keeps
// its multiprocessors.
Result<std::unique_ptr<Copier>> StagingPool::open_copier(int device, const Copier::Limits& limits) {
  std::shared_ptr<Standby> standby;
  if (limits.standby_ctas != 0) {
    const MutexLock lock(standbys_mutex_);
    std::shared_ptr<Standby>& kept = standbys_[device];
    if (!kept) {
      auto opened = Standby::open(device, {.ctas = limits.standby_ctas, .idle = kStandbyIdle});
      if (!opened) return tl::unexpected(std::move(opened.error()));
      kept = std::move(*opened);
    }
    standby = kept;
  }
  return Copier::open(device, limits, std::move(standby));
}

StagingPool::~StagingPool() {
  const MutexLock lock(mutex_);
  stop_ = true;
}

void StagingPool::add_device(int device) {
  const MutexLock lock(mutex_);
  if (first_device_ < 0) first_device_ = device;
  if (devices_.try_emplace(device, 0).second) make_ahead();
}

void StagingPool::add_stream() {
  const MutexLock lock(mutex_);
  ++streams_;
  make_ahead();
}

void StagingPool::remove_stream() {
  const MutexLock lock(mutex_);
  --streams_;
}

void StagingPool::make_ahead() {
  if (making_ || next().lack == Lack::kNothing) return;
  making_ = true;
  thread_.post([this] { run(); });
}

void StagingPool::run() {
  for (;;) {
    Want want;
    {
      const MutexLock lock(mutex_);
      want = next();
      if (want.lack == Lack::kNothing) {
        making_ = false;
        return;
      }
    }
    const Status made = make(want);
    if (made) continue;
    log(LogLevel::kWarning, "nothing more is made ahead to stage device memory: {}", made.error().message);
    const MutexLock lock(mutex_);
    failed_ = true;
  }
}

StagingPool::Want StagingPool::next() const {
  if (stop_ || failed_ || devices_.empty()) return {};
  const std::size_t wanted = std::min(limits_.slots, streams_ * limits_.slots_per_stream);
  if (slots_ < std::min(wanted, streams_ * kFirstSlotsPerStream)) return {.lack = Lack::kSlots};
  for (const auto& [device, served] : devices_) {
    if (served < streams_) return {.lack = Lack::kCopier, .device = device, .streams = streams_};
  }
  return slots_ < wanted ? Want{.lack = Lack::kSlots} : Want{};
}

Status StagingPool::make(const Want& want) {
  if (want.lack == Lack::kSlots) {
    const auto slot = grow();
    if (!slot) return tl::unexpected(slot.error());
    give_back(*slot);
    return {};
  }
  const auto made = copiers_.make_one(want.device, want.streams);
  if (!made) return tl::unexpected(made.error());
  if (*made) return {};
  const MutexLock lock(mutex_);
  devices_[want.device] = want.streams;
  return {};
}

Result<std::byte*> StagingPool::take(bool must) {
  {
    const MutexLock lock(mutex_);
    if (!free_.empty()) {
      std::byte* const slot = free_.back();
      free_.pop_back();
      return slot;
    }
    if (!must) return nullptr;
  }
  return grow();
}

void StagingPool::give_back(std::byte* slot) {
  const MutexLock lock(mutex_);
  free_.push_back(slot);
}

// Without the lock while memory is made; those that need some at the same time make more than one slab.
Result<std::byte*> StagingPool::grow() {
  int device = -1;
  {
    const MutexLock lock(mutex_);
    device = first_device_;
  }
  auto slab = allocate_(kSlab * limits_.slot_bytes, device);
  if (!slab) return tl::unexpected(std::move(slab.error()));
  std::byte* const first = slab->get();
  const MutexLock lock(mutex_);
  for (std::size_t i = kSlab - 1; i != 0; --i) free_.push_back(first + i * limits_.slot_bytes);
  slots_ += kSlab;
  slabs_.push_back(std::move(*slab));
  return first;
}

bool StagingPool::settled() const {
  const MutexLock lock(mutex_);
  return !making_;
}

std::size_t StagingPool::slots() const {
  const MutexLock lock(mutex_);
  return slots_;
}

}  // namespace p2p::device
