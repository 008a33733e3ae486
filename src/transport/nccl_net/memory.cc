// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/guarded_copy.h"
#include "base/io_vector.h"
#include "base/log.h"
#include "base/safe_copy.h"
#include "base/underlying.h"

namespace p2p::nccl_net {
namespace {
constexpr std::size_t kPage = 4096;
// In the slots of a comm of the host: half of a core's second cache.
constexpr std::size_t kMostStaged = std::size_t{1} << 20;

std::vector<iovec> list(const std::vector<LocalRange>& pieces) {
  std::vector<iovec> all;
  all.reserve(pieces.size());
  for (const LocalRange& piece : pieces) append_run(all, piece.data, piece.size);
  return all;
}

}  // namespace

const MemoryHandle* HandleCache::find(const Registration& registration) {
  const RegionInfo& info = registration.info();
  // A region may have been registered again by its old id: what was made for the one before is of no use.
  const auto life = static_cast<const NetRegistration&>(registration).life();
  const auto is_of = [&](const Entry& entry) {
    return !entry.life.owner_before(life) && !life.owner_before(entry.life);
  };
  if (const auto found = entries_.find(info.id); found != entries_.end() && !is_of(found->second)) {
    handles_.forget(to_underlying(info.id));
    entries_.erase(found);
  } else if (found != entries_.end()) {
    if (found->second.refused) return nullptr;
    return handles_.find(to_underlying(info.id), info.base, info.size, flow_.pointer).value_or(nullptr);
  }
  if (flow_.device >= 0 && info.place.device != flow_.device) return nullptr;
  sweep();
  const auto handle = handles_.find(to_underlying(info.id), info.base, info.size, flow_.pointer);
  entries_[info.id] = {life, !handle};
  if (handle) return *handle;
  log(LogLevel::kInfo, "{}; its bytes are copied through staging memory", handle.error().message);
  return nullptr;
}

void HandleCache::sweep() {
  std::erase_if(entries_, [&](const auto& entry) {
    if (!entry.second.life.expired()) return false;
    handles_.forget(to_underlying(entry.first));
    return true;
  });
}

void SlotMemory::Unmap::operator()(std::byte* data) const { ::munmap(data, bytes); }

Result<SlotMemory> SlotMemory::open(const std::shared_ptr<Comm>& comm, const Flow& flow) {
  SlotMemory staging;
  const std::size_t slot_bytes = (flow.chunk_bytes + kPage - 1) / kPage * kPage;
  const std::size_t bytes = flow.window * slot_bytes;
  staging.most_bytes_ = flow.device >= 0 ? bytes : std::max(kMostStaged, 2 * slot_bytes);
  std::byte* start = nullptr;
  if (flow.device >= 0) {
    auto buffer = cuda::DeviceBuffer::allocate(flow.device, bytes + kPage);
    if (!buffer) return tl::unexpected(buffer.error());
    staging.device_ = std::move(*buffer);
    start = page_range(staging.device_.data() + kPage - 1, 1).data;
  } else {
    void* data =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return tl::unexpected(system_error("map staging memory"));
    staging.mapped_ = {static_cast<std::byte*>(data), Unmap{bytes}};
    start = staging.mapped_.get();
  }
  auto handle = register_with(comm, start, bytes, flow.pointer);
  if (!handle) return tl::unexpected(handle.error());
  staging.handle_ = std::move(*handle);
  for (unsigned slot = flow.window; slot-- != 0;) staging.free_.push_back(start + slot * slot_bytes);
  return staging;
}

std::byte* SlotMemory::take(std::size_t bytes) {
  if (free_.empty() || (taken_bytes_ != 0 && taken_bytes_ + bytes > most_bytes_)) return nullptr;
  std::byte* const slot = free_.back();
  free_.pop_back();
  taken_bytes_ += bytes;
  return slot;
}

void SlotMemory::give_back(std::byte* slot, std::size_t bytes) {
  free_.push_back(slot);
  taken_bytes_ -= bytes;
}

Status check_alive(const std::vector<LocalRange>& pieces) {
  AliveCheck alive;
  for (const LocalRange& piece : pieces) alive.ask(piece.registration);
  return alive.status;
}

Status check_readable(const std::vector<LocalRange>& pieces) {
  const std::vector<iovec> all = list(pieces);
  if (readable(all)) return {};
  return tl::unexpected(bad_memory("read", all));
}

Status land_on_host(std::span<const kernels::CopyBlock> copies) {
  for (const kernels::CopyBlock& block : copies) {
    if (!guarded_copy(block.target, block.source, block.bytes)) {
      return tl::unexpected(bad_memory("write to", block.target, block.bytes));
    }
  }
  return {};
}

Status gather_on_host(const std::vector<LocalRange>& pieces, std::byte* out) {
  for (const LocalRange& piece : pieces) {
    if (!guarded_copy(out, piece.data, piece.size)) {
      return tl::unexpected(bad_memory("read", piece.data, piece.size));
    }
    out += piece.size;
  }
  return {};
}

bool contiguous(const std::vector<LocalRange>& pieces) {
  for (std::size_t index = 1; index < pieces.size(); ++index) {
    const LocalRange& before = pieces[index - 1];
    const LocalRange& piece = pieces[index];
    if (before.data + before.size != piece.data || before.registration != piece.registration) return false;
  }
  return !pieces.empty();
}

}  // namespace p2p::nccl_net
