// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/driver.h"

#include <dlfcn.h>

#include <atomic>
#include <string_view>

#include "base/error.h"
#include "drivers/cuda/error.h"
#include "drivers/cuda/loaded_library.h"

namespace p2p::cuda {
namespace {

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

bool find_mapping(void* library, Driver& driver) {
  return find(library, "cuMemGetAddressRange_v2", driver.address_range) &&
         find(library, "cuMemCreate", driver.create_memory) &&
         find(library, "cuMemRetainAllocationHandle", driver.retain_memory) &&
         find(library, "cuMemRelease", driver.release_memory) &&
         find(library, "cuMemGetAllocationPropertiesFromHandle", driver.memory_properties) &&
         find(library, "cuMemExportToShareableHandle", driver.export_memory) &&
         find(library, "cuMemImportFromShareableHandle", driver.import_memory) &&
         find(library, "cuMemAddressReserve", driver.reserve_addresses) &&
         find(library, "cuMemAddressFree", driver.free_addresses) &&
         find(library, "cuMemMap", driver.map_memory) && find(library, "cuMemUnmap", driver.unmap_memory) &&
         find(library, "cuMemSetAccess", driver.set_access);
}

// The versioned names are those that cuda.h's macros stand for.
bool find_all(void* library, Driver& driver) {
  return find(library, "cuCtxGetCurrent", driver.get_current) &&
         find(library, "cuCtxSetCurrent", driver.set_current) &&
         find(library, "cuDevicePrimaryCtxGetState", driver.primary_state) &&
         find(library, "cuPointerGetAttributes", driver.pointer_attributes) &&
         find(library, "cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode) &&
         find(library, "cuStreamGetCtx", driver.stream_context) &&
         find(library, "cuStreamIsCapturing", driver.is_capturing) &&
         find(library, "cuEventCreate", driver.make_event) &&
         find(library, "cuEventRecord", driver.record_event) &&
         find(library, "cuEventQuery", driver.query_event) &&
         find(library, "cuEventDestroy_v2", driver.destroy_event) &&
         find(library, "cuStreamWriteValue32_v2", driver.write_value) && find_mapping(library, driver);
}

// The library stays loaded for the life of the process, as it does once the CUDA runtime has been used; the
// table is written once and then only read.
const Driver* find_in(void* (*open)()) {
  static std::atomic<const Driver*> known{nullptr};
  if (const Driver* driver = known.load(std::memory_order_acquire)) return driver;
  void* library = open();
  if (library == nullptr) return nullptr;
  static const Driver found = [library] {
    Driver driver;
    find(library, "cuMemGetHandleForAddressRange", driver.handle_for_range);
    return find_all(library, driver) ? driver : Driver{};
  }();
  if (found.write_value == nullptr) return nullptr;
  known.store(&found, std::memory_order_release);
  return &found;
}

}  // namespace

const Driver* loaded_driver() { return find_in(loaded_library); }

// The folders are searched once. A library that the application loads later is found all the same.
Result<const Driver*> load_driver() {
  if (const Driver* driver = loaded_driver()) return driver;
  static const auto found = []() -> Result<const Driver*> {
    const auto open = [] { return ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL); };
    if (const Driver* driver = find_in(open)) return driver;
    const char* reason = ::dlerror();
    return fail(ErrorCode::kUnavailable, "no usable CUDA driver: {}",
                reason != nullptr ? reason : "libcuda.so.1 lacks functions of CUDA 12");
  }();
  return found;
}

}  // namespace p2p::cuda
