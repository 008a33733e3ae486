// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/foreign_pointer.h"

#include <dlfcn.h>

#include <cstdint>

#include "drivers/cuda/loaded_library.h"

namespace p2p::cuda {
namespace {

// Of the driver's stable interface.
using GetAttribute = int (*)(void* value, int attribute, unsigned long long pointer);
constexpr int kMemoryType = 2;
constexpr int kIsManaged = 8;
constexpr unsigned kDevice = 2;

}  // namespace

bool is_on_a_device(const void* pointer) {
  void* const library = loaded_library();
  if (library == nullptr) return false;
  const auto get = reinterpret_cast<GetAttribute>(::dlsym(library, "cuPointerGetAttribute"));
  unsigned type = 0;
  unsigned managed = 0;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const bool found = get != nullptr && get(&type, kMemoryType, address) == 0 && type == kDevice &&
                     (get(&managed, kIsManaged, address) != 0 || managed == 0);
  ::dlclose(library);
  return found;
}

}  // namespace p2p::cuda
