// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "gpu.h"

#include <dlfcn.h>

#include "failure.h"
#include "sizes.h"

namespace p2p::perf {
namespace {

using Context = void*;

/// The few functions of the CUDA driver's stable interface that memory takes. Each answers 0 for success.
struct Driver {
  int (*init)(unsigned flags) = nullptr;
  int (*get_device)(int* device, int ordinal) = nullptr;
  int (*retain_primary)(Context* context, int device) = nullptr;
  int (*set_current)(Context context) = nullptr;
  int (*allocate)(std::uint64_t* address, std::size_t size) = nullptr;
  int (*free)(std::uint64_t address) = nullptr;
  int (*to_device)(std::uint64_t target, const void* source, std::size_t size) = nullptr;
  int (*from_device)(void* target, std::uint64_t source, std::size_t size) = nullptr;
  int (*synchronize)(void* stream) = nullptr;
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, Driver& driver) {
  return find(library, "cuInit", driver.init) && find(library, "cuDeviceGet", driver.get_device) &&
         find(library, "cuDevicePrimaryCtxRetain", driver.retain_primary) &&
         find(library, "cuCtxSetCurrent", driver.set_current) &&
         find(library, "cuMemAlloc_v2", driver.allocate) && find(library, "cuMemFree_v2", driver.free) &&
         find(library, "cuMemcpyHtoD_v2", driver.to_device) &&
         find(library, "cuMemcpyDtoH_v2", driver.from_device) &&
         find(library, "cuStreamSynchronize", driver.synchronize);
}

/// The driver with `device` current on this thread. Contexts stay for the life of the process.
Result<const Driver*> driver_on(int device) {
  static const Driver driver = [] {
    Driver found;
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library != nullptr && find_all(library, found) && found.init(0) == 0 ? found : Driver{};
  }();
  if (driver.synchronize == nullptr) {
    return fail(ErrorCode::kUnavailable, "use cuda:{}: no CUDA driver that works", device);
  }
  int handle = 0;
  Context context = nullptr;
  if (driver.get_device(&handle, device) != 0) {
    return fail(ErrorCode::kUnavailable, "use cuda:{}: there is no such device", device);
  }
  if (driver.retain_primary(&context, handle) != 0 || driver.set_current(context) != 0) {
    return fail(ErrorCode::kSystem, "use cuda:{}: it gives no context", device);
  }
  return &driver;
}

}  // namespace

Result<GpuMemory> GpuMemory::allocate(int device, std::size_t size) {
  const auto driver = driver_on(device);
  if (!driver) return tl::unexpected(driver.error());
  std::uint64_t address = 0;
  if (const int code = (*driver)->allocate(&address, size); code != 0) {
    return fail(ErrorCode::kSystem, "allocate {} bytes on cuda:{}: CUDA error {}", format_size(size), device,
                code);
  }
  return GpuMemory(device, address);
}

GpuMemory::~GpuMemory() {
  if (address_ == 0) return;
  if (const auto driver = driver_on(device_)) (*driver)->free(address_);
}

// NOLINTNEXTLINE(performance-no-int-to-ptr): the driver gives addresses as numbers
std::byte* GpuMemory::data() const { return reinterpret_cast<std::byte*>(address_); }

Status GpuMemory::store(std::span<const std::byte> bytes) const {
  const auto driver = driver_on(device_);
  if (!driver) return tl::unexpected(driver.error());
  int code = (*driver)->to_device(address_, bytes.data(), bytes.size());
  // The copy of pageable memory returns when its bytes have left there, which is before they have arrived.
  if (code == 0) code = (*driver)->synchronize(nullptr);
  if (code != 0) return fail(ErrorCode::kSystem, "copy to cuda:{}: CUDA error {}", device_, code);
  return {};
}

Status GpuMemory::load(std::span<std::byte> bytes) const {
  const auto driver = driver_on(device_);
  if (!driver) return tl::unexpected(driver.error());
  const int code = (*driver)->from_device(bytes.data(), address_, bytes.size());
  if (code != 0) return fail(ErrorCode::kSystem, "copy from cuda:{}: CUDA error {}", device_, code);
  return {};
}

}  // namespace p2p::perf
