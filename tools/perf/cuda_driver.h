// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

/// Functions of the CUDA driver's stable interface, looked for at run time, so that what makes memory of a
/// GPU needs no CUDA to be built. For p2p-perf and for tests.
namespace p2p::cuda_driver {

using Context = void*;

// As the driver's interface has them.
struct Location {
  int type = 1;  // a device
  int device = 0;
};
struct MemoryKindAsked {
  int type = 1;  // pinned
  int shared_as = 0;
  Location location;
  void* unused = nullptr;
  unsigned char flags[8] = {};
};
struct Access {
  Location location;
  int flags = 3;  // to read and to write
};
static_assert(sizeof(MemoryKindAsked) == 32 && sizeof(Access) == 12);
constexpr int kDescriptor = 1;

/// The functions that memory takes. Each answers 0 for success.
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
  int (*reserve)(std::uint64_t* address, std::size_t size, std::size_t alignment, std::uint64_t wanted,
                 unsigned long long flags) = nullptr;
  int (*free_reserved)(std::uint64_t address, std::size_t size) = nullptr;
  int (*create)(std::uint64_t* memory, std::size_t size, const MemoryKindAsked* kind,
                unsigned long long flags) = nullptr;
  int (*release)(std::uint64_t memory) = nullptr;
  int (*map)(std::uint64_t address, std::size_t size, std::size_t offset, std::uint64_t memory,
             unsigned long long flags) = nullptr;
  int (*unmap)(std::uint64_t address, std::size_t size) = nullptr;
  int (*set_access)(std::uint64_t address, std::size_t size, const Access* access,
                    std::size_t count) = nullptr;
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

inline bool find_all(void* library, Driver& driver) {
  return find(library, "cuInit", driver.init) && find(library, "cuDeviceGet", driver.get_device) &&
         find(library, "cuDevicePrimaryCtxRetain", driver.retain_primary) &&
         find(library, "cuCtxSetCurrent", driver.set_current) &&
         find(library, "cuMemAlloc_v2", driver.allocate) && find(library, "cuMemFree_v2", driver.free) &&
         find(library, "cuMemcpyHtoD_v2", driver.to_device) &&
         find(library, "cuMemcpyDtoH_v2", driver.from_device) &&
         find(library, "cuMemAddressReserve", driver.reserve) &&
         find(library, "cuMemAddressFree", driver.free_reserved) &&
         find(library, "cuMemCreate", driver.create) && find(library, "cuMemRelease", driver.release) &&
         find(library, "cuMemMap", driver.map) && find(library, "cuMemUnmap", driver.unmap) &&
         find(library, "cuMemSetAccess", driver.set_access) &&
         find(library, "cuStreamSynchronize", driver.synchronize);
}

/// A table of whatever kind has a `find_all`, of the driver that works here; none of its functions without
/// one.
template <class Table>
Table load() {
  Table found;
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return library != nullptr && find_all(library, found) && found.init(0) == 0 ? found : Table{};
}

}  // namespace p2p::cuda_driver
