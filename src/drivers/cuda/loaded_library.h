// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstddef>

namespace p2p::cuda {

/// How many libraries this process has loaded so far, those that it closed again included. Costs nothing like
/// the search of folders that dlopen makes for a library which is not there.
inline unsigned long long libraries_loaded() {
  unsigned long long count = 0;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t /*size*/, void* out) {
        *static_cast<unsigned long long*>(out) = info->dlpi_adds;
        return 1;  // the first tells
      },
      &count);
  return count;
}

/// The CUDA driver's library if this process has loaded it, with a reference to be closed; else null. Asked
/// for every region that is registered, so it searches only once something was loaded.
inline void* loaded_library() {
  static std::atomic<unsigned long long> absent_at{0};
  const unsigned long long now = libraries_loaded();
  if (absent_at.load(std::memory_order_relaxed) == now) return nullptr;
  void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) absent_at.store(now, std::memory_order_relaxed);
  return library;
}

}  // namespace p2p::cuda
