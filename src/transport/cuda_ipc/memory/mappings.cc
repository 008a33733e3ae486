// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/memory/mappings.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "drivers/cuda/place.h"

namespace p2p::cuda_ipc {
namespace {

// Nobody has been lent it; those who are add to the count.
bool unused(const std::shared_ptr<const cuda::IpcMapping>& mapping) { return mapping.use_count() == 1; }

bool overlap(const SharedMemory& a, const SharedMemory& b) {
  return a.owner == b.owner && a.base < b.base + b.size && b.base < a.base + a.size;
}

// Who names an allocation without its handle has no right to a mapping of it.
bool same(const SharedMemory& a, const SharedMemory& b) {
  return a.owner == b.owner && a.base == b.base && a.buffer_id == b.buffer_id && a.handle == b.handle;
}

AllocationId id_of(const SharedMemory& memory) { return {memory.base, memory.buffer_id, memory.handle}; }

bool share_a_block(const SharedMemory& a, const SharedMemory& b) {
  const auto first = [](const SharedMemory& memory) { return memory.base >> kBlockBits; };
  const auto last = [](const SharedMemory& memory) { return (memory.base + memory.size - 1) >> kBlockBits; };
  return a.owner == b.owner && first(a) <= last(b) && first(b) <= last(a);
}

}  // namespace

bool Mappings::driver_covers(const std::byte* mapped, const std::byte* data, std::uint64_t size) {
  const auto first = reinterpret_cast<std::uint64_t>(data);
  if (size == 0 || first + (size - 1) < first) return false;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver is asked what it is
  const auto* const last = reinterpret_cast<const std::byte*>(first + (size - 1));
  const std::uint64_t id = cuda::buffer_id_of(mapped);
  return id != 0 && cuda::buffer_id_of(data) == id && cuda::buffer_id_of(last) == id;
}

Result<MappedMemory> Mappings::get(const SharedMemory& memory, const std::vector<AllocationId>& neighbours,
                                   int device) {
  {
    const MutexLock lock(mutex_);
    if (auto found = known(memory, neighbours, device); found.mapping) return found;
  }
  const MutexLock changing(changing_);
  Entries unwanted;
  {
    const MutexLock lock(mutex_);
    if (auto found = known(memory, neighbours, device); found.mapping) return found;  // opened meanwhile
    for (Entry& entry : entries_) {
      if (!same(entry.memory, memory) && overlap(entry.memory, memory)) entry.replaced = true;
    }
    sort_out(&memory);
    unwanted.swap(unwanted_);
  }
  unwanted.clear();  // closed before another one is opened, which would fail in the same block
  auto opened = open_(memory.handle, device);
  if (!opened) return tl::unexpected(opened.error());
  Entry entry{.memory = memory,
              .device = device,
              .others = {},
              .mapping = std::make_shared<const cuda::IpcMapping>(std::move(*opened))};
  std::byte* const data = entry.mapping->data();
  if (!covers_(data, data, memory.size)) {
    return fail(ErrorCode::kProtocol,
                "map a peer's allocation at {:#x}: its handle stands for less than the {} bytes it is said "
                "to have",
                memory.base, memory.size);
  }
  const MutexLock lock(mutex_);
  entries_.push_back(std::move(entry));
  return lend(entries_.back(), data);
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
    return each.device == device && !each.replaced &&
           (reaches(each.memory) || std::any_of(each.others.begin(), each.others.end(), reaches));
  });
  if (entry == entries_.end()) return {};
  entries_.splice(entries_.end(), entries_, entry);
  std::byte* const opened = entry->mapping->data();
  if (same(entry->memory, memory)) return lend(*entry, opened);
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
  return lend(*entry, data);
}

MappedMemory Mappings::lend(const Entry& entry, std::byte* data) {
  const cuda::IpcMapping* const mapping = entry.mapping.get();
  return {{mapping,
           [this, kept = entry.mapping](const cuda::IpcMapping*) mutable {
             kept.reset();
             give_back();
           }},
          data};
}

// Somebody has come to need a mapping no longer.
void Mappings::give_back() {
  {
    const MutexLock lock(mutex_);
    sort_out(nullptr);
    if (unwanted_.empty()) return;
  }
  close_soon();
}

void Mappings::close(std::shared_ptr<const cuda::IpcMapping> mapping) {
  const cuda::IpcMapping* const which = mapping.get();
  mapping.reset();
  {
    const MutexLock lock(mutex_);
    const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& each) { return each.mapping.get() == which; });
    if (entry == entries_.end() || !unused(entry->mapping)) return;
    unwanted_.splice(unwanted_.end(), entries_, entry);
  }
  close_soon();
}

// The task's copy is the last one when it ends; a stopped thread drops it at once.
void Mappings::close(std::shared_ptr<const cuda::Window> window) {
  static_cast<void>(closing_.post([window = std::move(window)]() mutable { window.reset(); }));
}

void Mappings::close_soon() {
  if (!closing_.post([this] { close_unwanted(); })) close_unwanted();
}

void Mappings::close_unwanted() {
  const MutexLock changing(changing_);
  Entries unwanted;
  {
    const MutexLock lock(mutex_);
    unwanted.swap(unwanted_);
  }
  unwanted.clear();
}

// Finds, among what nobody uses, what its owner has replaced, what would be in the way of `wanted`, and what
// is too much to keep.
void Mappings::sort_out(const SharedMemory* wanted) {
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  for (auto entry = entries_.end(); entry != entries_.begin();) {
    --entry;
    if (!unused(entry->mapping)) continue;
    const SharedMemory& memory = entry->memory;
    const bool in_the_way = wanted != nullptr && !same(memory, *wanted) && share_a_block(memory, *wanted);
    if (!entry->replaced && !in_the_way && count < limits_.count && memory.size <= limits_.bytes - bytes) {
      ++count;
      bytes += memory.size;
      continue;
    }
    const auto after = std::next(entry);
    unwanted_.splice(unwanted_.end(), entries_, entry);
    entry = after;
  }
}

std::size_t Mappings::open_count() const {
  const MutexLock lock(mutex_);
  return entries_.size() + unwanted_.size();
}

}  // namespace p2p::cuda_ipc
