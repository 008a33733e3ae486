// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/mappings.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "drivers/cuda/place.h"

namespace p2p::cuda_ipc {
namespace {

bool unused(const std::shared_ptr<const cuda::IpcMapping>& mapping) { return mapping.use_count() == 1; }

bool overlap(const SharedMemory& a, const SharedMemory& b) {
  return a.owner == b.owner && a.base < b.base + b.size && b.base < a.base + a.size;
}

bool same(const SharedMemory& a, const SharedMemory& b) {
  return a.owner == b.owner && a.base == b.base && a.buffer_id == b.buffer_id;
}

AllocationId id_of(const SharedMemory& memory) { return {memory.base, memory.buffer_id}; }

bool share_a_block(const SharedMemory& a, const SharedMemory& b) {
  const auto first = [](const SharedMemory& memory) { return memory.base >> kBlockBits; };
  const auto last = [](const SharedMemory& memory) { return (memory.base + memory.size - 1) >> kBlockBits; };
  return a.owner == b.owner && first(a) <= last(b) && first(b) <= last(a);
}

}  // namespace

bool Mappings::driver_covers(const std::byte* mapped, const std::byte* data, std::uint64_t size) {
  const std::uint64_t id = cuda::buffer_id_of(mapped);
  return id != 0 && cuda::buffer_id_of(data) == id && cuda::buffer_id_of(data + size - 1) == id;
}

Result<MappedMemory> Mappings::get(const SharedMemory& memory, const std::vector<AllocationId>& neighbours,
                                   int device) {
  const MutexLock lock(mutex_);
  if (auto found = known(memory, neighbours, device); found.mapping) return found;
  take_unwanted(memory);  // closed before another one is opened, which would fail in the same block
  auto opened = open_(memory.handle, device);
  if (!opened) return tl::unexpected(opened.error());
  Entry entry{.memory = memory,
              .device = device,
              .others = {},
              .mapping = std::make_shared<const cuda::IpcMapping>(std::move(*opened))};
  entries_.push_back(std::move(entry));
  return MappedMemory{entries_.back().mapping, entries_.back().mapping->data()};
}

// No mapping: it has to be opened.
MappedMemory Mappings::known(const SharedMemory& memory, const std::vector<AllocationId>& neighbours,
                             int device) {
  const auto reaches = [&](const SharedMemory& has) {
    return same(has, memory) ||
           (has.owner == memory.owner && share_a_block(has, memory) &&
            std::find(neighbours.begin(), neighbours.end(), id_of(has)) != neighbours.end());
  };
  const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& each) {
    return each.device == device &&
           (reaches(each.memory) || std::any_of(each.others.begin(), each.others.end(), reaches));
  });
  if (entry == entries_.end()) return {};
  entries_.splice(entries_.end(), entries_, entry);
  std::byte* const opened = entry->mapping->data();
  if (same(entry->memory, memory)) return {entry->mapping, opened};
  // They lie as far apart here as there.
  const std::uint64_t address = reinterpret_cast<std::uint64_t>(opened) + (memory.base - entry->memory.base);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): looked at by the driver before it is used
  auto* const data = reinterpret_cast<std::byte*>(address);
  if (!covers_(opened, data, memory.size)) return {};
  const bool listed = std::any_of(entry->others.begin(), entry->others.end(),
                                  [&](const SharedMemory& other) { return same(other, memory); });
  std::erase_if(entry->others, [&](const SharedMemory& other) {
    return !same(other, memory) && overlap(other, memory);  // gone since
  });
  if (!listed) entry->others.push_back(memory);
  return {entry->mapping, data};
}

// What its owner has replaced, what would be in the way, and what is too much to keep for nobody.
Mappings::Entries Mappings::take_unwanted(const SharedMemory& memory) {
  Entries unwanted;
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  for (auto entry = entries_.end(); entry != entries_.begin();) {
    --entry;
    const bool current = same(entry->memory, memory);
    const bool replaced = !current && overlap(entry->memory, memory);
    bool excess = false;
    if (!current && unused(entry->mapping)) {
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
