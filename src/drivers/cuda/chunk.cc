// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/chunk.h"

#include "base/error.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/retained.h"

namespace p2p::cuda {
namespace {

tl::unexpected<Error> nothing_at(const Allocation& allocation, const std::byte* data, std::uint64_t size,
                                 std::uint64_t at) {
  return fail(ErrorCode::kUnavailable, "{} bytes at {}: no memory of CUDA device {} is mapped at {:#x}", size,
              static_cast<const void*>(data), allocation.device, at);
}

// Null where nothing is mapped.
Chunk chunk_at(const Driver& driver, std::uint64_t address, int device) {
  CUdeviceptr base = 0;
  std::size_t size = 0;
  if (driver.address_range(&base, &size, address) != CUDA_SUCCESS || size == 0) return {};
  const RetainedMemory memory(driver, base);
  if (!memory) return {};
  CUmemAllocationProp properties{};
  if (driver.memory_properties(&properties, memory.handle()) != CUDA_SUCCESS ||
      properties.location.type != CU_MEM_LOCATION_TYPE_DEVICE || properties.location.id != device) {
    return {};
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver gives addresses as numbers
  auto* const begin = reinterpret_cast<std::byte*>(base);
  return {.base = begin,
          .size = size,
          .memory_id = memory_id_of(begin),
          .exportable = (properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0};
}

Result<UniqueFd> descriptor_of(const Driver& driver, CUmemGenericAllocationHandle memory,
                               std::uint64_t size) {
  int fd = -1;
  const DescriptorChange change;
  const CUresult code = driver.export_memory(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (code == CUDA_SUCCESS) return UniqueFd(fd);
  return fail(ErrorCode::kSystem, "export {} bytes of device memory: driver error {}", size,
              static_cast<int>(code));
}

}  // namespace

Result<std::vector<Chunk>> chunks_of(const Allocation& allocation, const std::byte* data,
                                     std::uint64_t size) {
  const Driver* const driver = loaded_driver();
  const DeviceGuard guard(allocation.device);
  if (!guard.status()) return tl::unexpected<Error>(guard.status().error());
  std::vector<Chunk> chunks;
  const auto first = reinterpret_cast<std::uint64_t>(data);
  const std::uint64_t end = first + size;
  for (std::uint64_t at = first; at < end;) {
    const Chunk chunk = chunk_at(*driver, at, allocation.device);
    const auto base = reinterpret_cast<std::uint64_t>(chunk.base);
    if (chunk.base == nullptr || base > at || chunk.size <= at - base) {
      return nothing_at(allocation, data, size, at);
    }
    chunks.push_back(chunk);
    at = base + chunk.size;
  }
  return chunks;
}

bool is_there(const Chunk& chunk) { return memory_id_of(chunk.base) == chunk.memory_id; }

Result<UniqueFd> export_chunk(const Chunk& chunk) {
  const Driver* const driver = loaded_driver();
  const DeviceGuard guard(kAnyDevice);
  if (!guard.status()) return tl::unexpected<Error>(guard.status().error());
  const RetainedMemory memory(*driver, reinterpret_cast<CUdeviceptr>(chunk.base));
  // Looked at once it is held: what is held cannot be replaced any more.
  if (!memory || !is_there(chunk)) {
    return fail(ErrorCode::kNotFound, "the memory at {} was unmapped, or other memory is mapped there now",
                static_cast<const void*>(chunk.base));
  }
  return descriptor_of(*driver, memory.handle(), chunk.size);
}

Result<UniqueFd> make_chunk(int device, std::uint64_t size) {
  const auto driver = load_driver();
  if (!driver) return tl::unexpected<Error>(driver.error());
  const DeviceGuard guard(kAnyDevice);
  if (!guard.status()) return tl::unexpected<Error>(guard.status().error());
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  CUmemGenericAllocationHandle memory = 0;
  const CUresult code = (*driver)->create_memory(&memory, size, &properties, 0);
  if (code != CUDA_SUCCESS) {
    return fail(ErrorCode::kUnavailable,
                "make {} bytes on CUDA device {} for other processes: driver error {}", size, device,
                static_cast<int>(code));
  }
  auto descriptor = descriptor_of(**driver, memory, size);
  (*driver)->release_memory(memory);
  return descriptor;
}

}  // namespace p2p::cuda
