// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/own_pages.h"

#include <sys/mman.h>

namespace p2p {

#if defined(P2P_ASAN)

// On the heap, the address sanitizer checks accesses beyond either end.
void* take_pages(std::size_t bytes) { return ::operator new(bytes); }
void give_pages(void* pages, std::size_t /*bytes*/) noexcept { ::operator delete(pages); }

#else

void* take_pages(std::size_t bytes) {
  void* const pages =
      ::mmap(nullptr, bytes == 0 ? 1 : bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  return pages;
}

void give_pages(void* pages, std::size_t bytes) noexcept {
  if (pages != nullptr) ::munmap(pages, bytes == 0 ? 1 : bytes);
}

#endif

}  // namespace p2p
