// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/place.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"
#include "drivers/cuda/driver.h"
#include "drivers/cuda/error.h"
#include "drivers/cuda/retained.h"

namespace p2p::cuda {
namespace {

struct Attributes {
  CUmemorytype type = CUmemorytype(0);  // 0: unknown to CUDA
  int device = -1;
  unsigned managed = 0;
  CUdeviceptr base = 0;
  std::size_t size = 0;
  std::uint64_t buffer_id = 0;
  unsigned legacy_ipc = 0;
  CUmemoryPool pool = nullptr;
};

CUresult attributes_of(const Driver& driver, const void* pointer, Attributes& out) {
  std::array<CUpointer_attribute, 8> names = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                              CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                              CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                              CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                              CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                              CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                              CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                              CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  std::array<void*, 8> values = {&out.type, &out.device,    &out.managed,    &out.base,
                                 &out.size, &out.buffer_id, &out.legacy_ipc, &out.pool};
  return driver.pointer_attributes(names.size(), names.data(), values.data(),
                                   reinterpret_cast<CUdeviceptr>(pointer));
}

// CUDA answers for memory that it does not know with type 0 or, before it is set up, with an error.
bool means_unknown(CUresult code) {
  return code == CUDA_ERROR_NOT_INITIALIZED || code == CUDA_ERROR_NO_DEVICE ||
         code == CUDA_ERROR_INVALID_VALUE || code == CUDA_ERROR_INVALID_CONTEXT;
}

bool on_device(const Attributes& attributes) {
  return attributes.type == CU_MEMORYTYPE_DEVICE && attributes.managed == 0;
}

// 0 where there is none, or the driver does not know the attribute.
std::uint64_t id_of(CUpointer_attribute name, CUdeviceptr pointer) {
  const Driver* driver = loaded_driver();
  unsigned long long id = 0;
  void* value = &id;
  if (driver == nullptr || driver->pointer_attributes(1, &name, &value, pointer) != CUDA_SUCCESS) return 0;
  return id;
}

// Some drivers say of memory from cudaMalloc, too, that it has no legacy handle.
bool is_mapped(const Driver& driver, const Attributes& attributes, const void* pointer) {
  if (attributes.legacy_ipc != 0 || attributes.pool != nullptr) return false;
  return static_cast<bool>(RetainedMemory(driver, reinterpret_cast<CUdeviceptr>(pointer)));
}

}  // namespace

Result<MemoryPlace> place_of(const void* pointer) {
  const Driver* driver = loaded_driver();
  if (driver == nullptr) return MemoryPlace{};
  Attributes attributes;
  const CUresult code = attributes_of(*driver, pointer, attributes);
  if (means_unknown(code)) return MemoryPlace{};
  if (code != CUDA_SUCCESS) {
    return fail(ErrorCode::kSystem, "ask CUDA what memory {} is: driver error {}", pointer,
                static_cast<int>(code));
  }
  if (!on_device(attributes)) return MemoryPlace{};
  return MemoryPlace{MemoryKind::kCuda, attributes.device};
}

Result<std::string> bus_id_of(int device) {
  std::array<char, 32> text{};
  const int code = cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device);
  if (code != cudaSuccess) {
    return tl::unexpected<Error>(error_of(code, fmt::format("ask for the place of CUDA device {}", device)));
  }
  std::string id(text.data());
  std::transform(id.begin(), id.end(), id.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return id;
}

Result<Allocation> allocation_of(const void* pointer) {
  const Driver* driver = loaded_driver();
  Attributes attributes;
  const CUresult code =
      driver != nullptr ? attributes_of(*driver, pointer, attributes) : CUDA_ERROR_NOT_INITIALIZED;
  if (code != CUDA_SUCCESS || !on_device(attributes)) {
    return fail(ErrorCode::kNotFound, "{} is no CUDA device memory", pointer);
  }
  const bool mapped = is_mapped(*driver, attributes, pointer);
  return Allocation{.base = reinterpret_cast<std::byte*>(attributes.base),
                    .size = attributes.size,
                    .buffer_id = attributes.buffer_id,
                    .memory_id = mapped ? memory_id_of(pointer) : 0,
                    .device = attributes.device,
                    .shareable = attributes.pool == nullptr && !mapped,
                    .pooled = attributes.pool != nullptr,
                    .mapped = mapped};
}

Status check_range(const Allocation& allocation, const std::byte* data, std::uint64_t size) {
  const auto offset = static_cast<std::uint64_t>(data - allocation.base);
  if (offset <= allocation.size && size <= allocation.size - offset) return {};
  return fail(ErrorCode::kUnavailable, "{} bytes at {} reach beyond one device allocation", size,
              static_cast<const void*>(data));
}

bool is_there(const Allocation& allocation, const void* pointer) {
  return buffer_id_of(pointer) == allocation.buffer_id &&
         (!allocation.mapped || memory_id_of(pointer) == allocation.memory_id);
}

std::uint64_t buffer_id_of(const void* pointer) {
  return id_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, reinterpret_cast<CUdeviceptr>(pointer));
}

std::uint64_t memory_id_of(const void* pointer) {
  return id_of(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, reinterpret_cast<CUdeviceptr>(pointer));
}

bool pinned(const void* pointer, std::size_t bytes) {
  const Driver* driver = loaded_driver();
  Attributes attributes;
  if (driver == nullptr || attributes_of(*driver, pointer, attributes) != CUDA_SUCCESS ||
      attributes.type != CU_MEMORYTYPE_HOST) {
    return false;
  }
  const std::uint64_t offset = reinterpret_cast<CUdeviceptr>(pointer) - attributes.base;
  return offset <= attributes.size && bytes <= attributes.size - offset;
}

}  // namespace p2p::cuda
