// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

namespace p2p::testing {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

std::uint64_t word_of(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t value = (seed * 0x2545f4914f6cdd1du) ^ (index + 0x632be59bd9b4e019u);
  value *= 0x9e3779b97f4a7c15u;
  value ^= value >> 31;
  return value * 0xbf58476d1ce4e5b9u;
}

std::byte byte_of(std::uint64_t word, std::size_t i) { return static_cast<std::byte>(word >> (8 * i)); }

}  // namespace

Pages::Pages(std::size_t size) {
  if (size == 0) return;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  bytes_ = {static_cast<std::byte*>(data), size};
}

Pages::Pages(Pages&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

Pages::~Pages() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

void spoil(std::span<std::byte> pages, Bad how) {
  bool done = false;
  if (how == Bad::kCut) {
    // Of an empty file even the first page is behind the end.
    std::FILE* const file = std::tmpfile();
    if (file == nullptr) throw std::bad_alloc();
    const int flags = MAP_SHARED | MAP_FIXED;
    void* const at = ::mmap(pages.data(), pages.size(), PROT_READ | PROT_WRITE, flags, ::fileno(file), 0);
    done = at != MAP_FAILED;
    std::fclose(file);
  } else if (how == Bad::kUnmapped) {
    done = ::munmap(pages.data(), pages.size()) == 0;
  } else {
    done = ::mprotect(pages.data(), pages.size(), how == Bad::kReadOnly ? PROT_READ : PROT_NONE) == 0;
  }
  if (!done) throw std::bad_alloc();
}

// Loops over bytes: what the library's functions read and write, the thread sanitizer sees in every file.

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  std::byte* const data = bytes.data();
  for (std::size_t at = 0; at < bytes.size(); at += kWord) {
    const std::uint64_t word = word_of(seed, at);
    const std::size_t size = std::min(kWord, bytes.size() - at);
    for (std::size_t i = 0; i < size; ++i) data[at + i] = byte_of(word, i);
  }
}

void set_all(std::span<std::byte> bytes, std::byte value) {
  volatile std::byte* const data = bytes.data();  // or compilers make a call of memset of it
  for (std::size_t i = 0; i < bytes.size(); ++i) data[i] = value;
}

std::optional<std::size_t> difference(std::span<const std::byte> bytes, std::uint64_t seed) {
  const std::byte* const data = bytes.data();
  for (std::size_t at = 0; at < bytes.size(); at += kWord) {
    const std::uint64_t word = word_of(seed, at);
    const std::size_t size = std::min(kWord, bytes.size() - at);
    for (std::size_t i = 0; i < size; ++i) {
      if (data[at + i] != byte_of(word, i)) return at + i;
    }
  }
  return std::nullopt;
}

std::optional<std::size_t> first_not(std::span<const std::byte> bytes, std::byte value) {
  return first_neither(bytes, value, value);
}

std::optional<std::size_t> first_neither(std::span<const std::byte> bytes, std::byte one, std::byte other) {
  const std::byte* const data = bytes.data();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (data[i] != one && data[i] != other) return i;
  }
  return std::nullopt;
}

}  // namespace p2p::testing
