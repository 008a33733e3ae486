// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <span>

#include "failure.h"

namespace p2p::nixl {

Result<RemoteRegionId> RemoteMemory::import(const Peer::Link& link) const {
  const std::uint64_t known = imported_.load(std::memory_order_acquire);
  if (known >> 32 == link.number) return static_cast<RemoteRegionId>(known & 0xffffffff);
  const auto id = link.connection.import_region(descriptor_);
  if (id) {
    imported_.store(std::uint64_t{link.number} << 32 | static_cast<std::uint32_t>(*id),
                    std::memory_order_release);
  }
  return id;
}

Result<RegionDescriptor> parse_public_data(const nixlBlobDesc& range, nixl_mem_t kind) {
  auto descriptor = RegionDescriptor::parse(std::as_bytes(std::span(range.metaInfo)));
  if (!descriptor) return descriptor;
  const std::uint64_t offset = range.addr - descriptor->address;
  if (offset > descriptor->size || range.len > descriptor->size - offset) {
    return failure(ErrorCode::kInvalidArgument,
                   "load a peer's memory: its description is of another range than its metadata");
  }
  if (const Status fits = check_place(kind, descriptor->place); !fits) return tl::unexpected(fits.error());
  return descriptor;
}

Status check_place(nixl_mem_t kind, const MemoryPlace& place) {
  if (kind == DRAM_SEG || (kind == VRAM_SEG && place.kind == MemoryKind::kCuda)) return {};
  if (kind == VRAM_SEG) {
    return failure(ErrorCode::kInvalidArgument,
                   "use memory as VRAM: it is host memory, or there is no CUDA here");
  }
  return failure(ErrorCode::kUnavailable,
                 "use memory of kind " + std::to_string(kind) + ": only DRAM and VRAM work");
}

}  // namespace p2p::nixl
