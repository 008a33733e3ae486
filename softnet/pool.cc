// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "softnet/pool.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "drivers/cuda/device.h"
#include "drivers/cuda/place.h"
#include "softnet/log.h"
#include "softnet/settings.h"

namespace softnet {
namespace {
constexpr std::size_t kHostPage = 4096;

/// The NUMA node next to the device that is current. From another one all bytes would pass the link between
/// the sockets twice.
std::optional<int> node_of_device() {
  const auto bus_id = p2p::cuda::bus_id_of(p2p::cuda::current_device());
  if (!bus_id) return std::nullopt;
  std::ifstream file("/sys/bus/pci/devices/" + *bus_id + "/numa_node");
  int node = -1;
  if (!(file >> node) || node < 0) return std::nullopt;
  return node;
}

}  // namespace

Pool::Pool(std::byte* base, std::size_t size) : base_(base), size_(size) {
  free_.emplace(0, static_cast<std::uint32_t>(size));
}

Pool::Pool(p2p::cuda::HostBuffer pinned) : Pool(pinned.data(), pinned.size()) { pinned_ = std::move(pinned); }

Pool* Pool::make() {
  const std::size_t size = settings().pool_bytes;
  if (settings().cuda) {
    auto memory = p2p::cuda::HostBuffer::allocate(size, node_of_device());
    if (!memory) {
      warn("{}", memory.error().message);
      return nullptr;
    }
    return new Pool(std::move(*memory));
  }
  void* base =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  // What is lent is counted and sent page by page.
  static_cast<void>(::madvise(base, size, MADV_HUGEPAGE));
  return new Pool(static_cast<std::byte*>(base), size);
}

/// As GPUDirect-TCPX does it: whoever finds no pool imports it, and a second import unmaps the first.
Pool* Pool::import_lazily() {
  static std::atomic<Pool*> imported{nullptr};
  if (Pool* const pool = imported) return pool;
  Pool* const mine = make();
  // The daemon that has the pool takes its time to answer.
  constexpr std::chrono::milliseconds kAnswerTime{5};
  std::this_thread::sleep_for(kAnswerTime);
  if (Pool* const first = imported.exchange(mine)) first->vanish();
  return mine;
}

/// Whoever still has the address faults.
void Pool::vanish() {
  warn("the pool of receives at {} was imported twice", static_cast<void*>(base_));
  if (pinned_.data() == nullptr) ::mprotect(base_, size_, PROT_NONE);
}

Pool* Pool::of_receives() {
  if (settings().habits.lazy_pool) return import_lazily();
  static Pool* const pool = make();
  return pool;
}

Pool* Pool::of_sends() {
  static Pool* const pool = make();
  return pool;
}

std::optional<Pool::Extent> Pool::take(std::size_t bytes) {
  const std::size_t size = (bytes + kHostPage - 1) / kHostPage * kHostPage;
  const std::lock_guard lock(mutex_);
  for (auto free = free_.begin(); free != free_.end(); ++free) {
    if (free->second < size) continue;
    const Extent extent{free->first, static_cast<std::uint32_t>(size)};
    const std::uint32_t rest = free->second - extent.size;
    free_.erase(free);
    if (rest != 0) free_.emplace(extent.offset + extent.size, rest);
    return extent;
  }
  return std::nullopt;
}

void Pool::give_back(Extent extent) {
  if (extent.size == 0) return;
  const std::lock_guard lock(mutex_);
  auto place = free_.emplace(extent.offset, extent.size).first;
  const auto next = std::next(place);
  if (next != free_.end() && place->first + place->second == next->first) {
    place->second += next->second;
    free_.erase(next);
  }
  if (place == free_.begin()) return;
  const auto previous = std::prev(place);
  if (previous->first + previous->second != place->first) return;
  previous->second += place->second;
  free_.erase(place);
}

}  // namespace softnet
