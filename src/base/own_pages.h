// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <new>

namespace p2p {

/// Memory mapped from the system, and unmapped when it is given back. Large blocks that come and go on the
/// heap leave holes that small neighbours keep resident. Throws std::bad_alloc.
void* take_pages(std::size_t bytes);
void give_pages(void* pages, std::size_t bytes) noexcept;

/// A base for classes whose objects are some pages large.
struct OnOwnPages {
  static void* operator new(std::size_t bytes) { return take_pages(bytes); }
  static void operator delete(void* object, std::size_t bytes) noexcept { give_pages(object, bytes); }
};

/// An allocator for buffers in containers.
template <class T>
struct OwnPages {
  using value_type = T;  // NOLINT(readability-identifier-naming): asked for by the standard
  OwnPages() = default;
  template <class Other>
  explicit OwnPages(const OwnPages<Other>&) {}

  T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(take_pages(count * sizeof(T)));
  }
  void deallocate(T* at, std::size_t count) noexcept { give_pages(at, count * sizeof(T)); }
  friend bool operator==(const OwnPages&, const OwnPages&) { return true; }
};

}  // namespace p2p
