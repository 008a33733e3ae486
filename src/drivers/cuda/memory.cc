// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/memory.h"

#include <cuda_runtime_api.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/error.h"
#include "drivers/cuda/place.h"

namespace p2p::cuda {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Pages of a mapping that are not present yet will come from the node as long as it has any.
void prefer_node(std::byte* data, std::size_t bytes, int node) {
  constexpr int kNodes = 1024;  // as many as Linux can be built for
  constexpr int kBits = std::numeric_limits<unsigned long>::digits;
  std::array<unsigned long, kNodes / kBits> nodes{};
  if (node < 0 || node >= kNodes) return;
  nodes[static_cast<std::size_t>(node / kBits)] = 1UL << (node % kBits);
  // The kernel counts one bit less than it is told.
  if (::syscall(SYS_mbind, data, bytes, MPOL_PREFERRED, nodes.data(), kNodes + 1, 0) == 0) return;
  log(LogLevel::kDebug, "{}", system_error(fmt::format("place pinned memory on NUMA node {}", node)).message);
}

/// `bytes`, a multiple of kHugePage, aligned to it, each page present; null if there is no memory. Whether
/// the pages are huge is the system's choice.
std::byte* map_pages(std::size_t bytes, int numa_node) {
  void* const mapped =
      ::mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapped);
  const std::size_t before = (0 - reinterpret_cast<std::uintptr_t>(begin)) % kHugePage;
  if (before != 0) ::munmap(begin, before);
  ::munmap(begin + before + bytes, kHugePage - before);
  std::byte* const data = begin + before;
  static_cast<void>(::madvise(data, bytes, MADV_HUGEPAGE));
  prefer_node(data, bytes, numa_node);
#ifdef MADV_POPULATE_WRITE
  static_cast<void>(::madvise(data, bytes, MADV_POPULATE_WRITE));  // else pinning makes them present
#endif
  return data;
}

}  // namespace

Result<HostBuffer> HostBuffer::allocate(std::size_t bytes, std::optional<int> numa_node) {
  if (const Status status = available(); !status) return tl::unexpected<Error>(status.error());
  const DeviceGuard guard(kAnyDevice);
  if (!guard.status()) return tl::unexpected<Error>(guard.status().error());
  if (bytes >= kHugePage && bytes <= PTRDIFF_MAX - 2 * kHugePage) {
    const std::size_t mapped = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    if (std::byte* const pages = map_pages(mapped, numa_node.value_or(-1)); pages != nullptr) {
      const int code = cudaHostRegister(pages, mapped, cudaHostRegisterPortable | cudaHostRegisterMapped);
      if (code == 0) return HostBuffer(pages, bytes, mapped);
      static_cast<void>(cudaGetLastError());  // CUDA's own may do
      ::munmap(pages, mapped);
    }
  }
  void* data = nullptr;
  if (const int code = cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped); code != 0) {
    return tl::unexpected<Error>(error_of(code, fmt::format("allocate {} bytes of pinned memory", bytes)));
  }
  return HostBuffer(static_cast<std::byte*>(data), bytes, 0);
}

HostBuffer::~HostBuffer() {
  if (data_ == nullptr) return;
  const DeviceGuard guard(kAnyDevice);
  if (mapped_ == 0) {
    cudaFreeHost(data_);
  } else if (cudaHostUnregister(data_) == 0) {
    ::munmap(data_, mapped_);
  }
}

Result<HostPin> HostPin::pin(std::byte* data, std::size_t bytes) {
  if (const Status status = available(); !status) return tl::unexpected<Error>(status.error());
  if (pinned(data, bytes)) return HostPin();
  const DeviceGuard guard(kAnyDevice);
  if (!guard.status()) return tl::unexpected<Error>(guard.status().error());
  const int code = cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (code != 0) {
    return tl::unexpected<Error>(
        error_of(code, fmt::format("pin {} bytes at {}", bytes, static_cast<void*>(data))));
  }
  return HostPin(data);
}

HostPin::~HostPin() {
  if (data_ == nullptr) return;
  const DeviceGuard guard(kAnyDevice);
  cudaHostUnregister(data_);
}

Result<DeviceBuffer> DeviceBuffer::allocate(int device, std::size_t bytes, bool zero) {
  const DeviceGuard guard(device);
  if (!guard.status()) return tl::unexpected<Error>(guard.status().error());
  void* data = nullptr;
  if (const int code = cudaMalloc(&data, bytes); code != 0) {
    return tl::unexpected<Error>(
        error_of(code, fmt::format("allocate {} bytes on CUDA device {}", bytes, device)));
  }
  DeviceBuffer buffer(static_cast<std::byte*>(data), bytes, device);
  if (!zero) return buffer;
  int code = cudaMemsetAsync(data, 0, bytes, cudaStreamPerThread);
  if (code == 0) code = cudaStreamSynchronize(cudaStreamPerThread);
  if (code != 0) return tl::unexpected<Error>(error_of(code, "clear device memory"));
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  const DeviceGuard guard(device_);
  cudaFree(data_);
}

Status copy_now(void* target, const void* source, std::size_t bytes) {
  const auto from = place_of(source);
  const auto to = place_of(target);
  if (!from) return tl::unexpected<Error>(from.error());
  if (!to) return tl::unexpected<Error>(to.error());
  const int device = from->kind == MemoryKind::kCuda ? from->device : to->device;
  const DeviceGuard guard(device < 0 ? kAnyDevice : device);
  if (!guard.status()) return guard.status();
  int code = cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, cudaStreamPerThread);
  if (code == 0) code = cudaStreamSynchronize(cudaStreamPerThread);
  return check(code, fmt::format("copy {} bytes from {} to {}", bytes, source, target));
}

}  // namespace p2p::cuda
