// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/mappings.h"

#include <algorithm>
#include <utility>

namespace p2p::cuda_ipc {
namespace {

bool unused(const std::shared_ptr<const cuda::IpcMapping>& mapping) { return mapping.use_count() == 1; }

bool overlap(const SharedMemory& a, const SharedMemory& b) {
  return a.owner == b.owner && a.base < b.base + b.size && b.base < a.base + a.size;
}

// CUDA puts small allocations together into blocks of this size and maps a block into a process only once.
constexpr unsigned kBlockBits = 21;

bool share_a_block(const SharedMemory& a, const SharedMemory& b) {
  const auto first = [](const SharedMemory& memory) { return memory.base >> kBlockBits; };
  const auto last = [](const SharedMemory& memory) { return (memory.base + memory.size - 1) >> kBlockBits; };
  return a.owner == b.owner && first(a) <= last(b) && first(b) <= last(a);
}

}  // namespace

Result<std::shared_ptr<const cuda::IpcMapping>> Mappings::get(const SharedMemory& memory, int device) {
  MutexLock lock(mutex_);
  take_unwanted(memory);  // closed before another one is opened, which would fail in the same block
  const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.device == device && entry.memory.owner == memory.owner && entry.memory.base == memory.base &&
           entry.memory.buffer_id == memory.buffer_id;
  });
  if (known != entries_.end()) {
    entries_.splice(entries_.end(), entries_, known);
    return known->mapping;
  }
  auto opened = open_(memory.handle, device);
  if (!opened) return tl::unexpected(opened.error());
  entries_.push_back({memory, device, std::make_shared<const cuda::IpcMapping>(std::move(*opened))});
  return entries_.back().mapping;
}

// What its owner has replaced, what would be in the way, and what is too much to keep for nobody.
Mappings::Entries Mappings::take_unwanted(const SharedMemory& memory) {
  Entries unwanted;
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  for (auto entry = entries_.end(); entry != entries_.begin();) {
    --entry;
    const bool same = entry->memory.owner == memory.owner && entry->memory.base == memory.base &&
                      entry->memory.buffer_id == memory.buffer_id;
    const bool replaced = !same && overlap(entry->memory, memory);
    bool excess = false;
    if (!same && unused(entry->mapping)) {
      excess = share_a_block(entry->memory, memory) || ++count > limits_.count ||
               (bytes += entry->memory.size) > limits_.bytes;
    }
    if (!replaced && !excess) continue;
    const auto after = std::next(entry);
    unwanted.splice(unwanted.end(), entries_, entry);
    entry = after;
  }
  return unwanted;
}

std::size_t Mappings::open_count() const {
  const MutexLock lock(mutex_);
  return entries_.size();
}

}  // namespace p2p::cuda_ipc
