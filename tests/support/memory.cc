// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace p2p::testing {
namespace {

std::uint64_t word_of(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t value = (seed * 0x2545f4914f6cdd1du) ^ (index + 0x632be59bd9b4e019u);
  value *= 0x9e3779b97f4a7c15u;
  value ^= value >> 31;
  return value * 0xbf58476d1ce4e5b9u;
}

/// visit(offset, size, bytes) for words of the pattern; stops at false.
template <class Visitor>
void for_each_word(std::size_t size, std::uint64_t seed, Visitor&& visit) {
  for (std::size_t offset = 0; offset < size; offset += sizeof(std::uint64_t)) {
    const std::uint64_t word = word_of(seed, offset);
    if (!visit(offset, std::min(sizeof word, size - offset), reinterpret_cast<const std::byte*>(&word))) {
      return;
    }
  }
}

}  // namespace

Pages::Pages(std::size_t size) {
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

void fill(std::span<std::byte> bytes, std::uint64_t seed) {
  for_each_word(bytes.size(), seed, [&](std::size_t offset, std::size_t size, const std::byte* word) {
    std::memcpy(bytes.data() + offset, word, size);
    return true;
  });
}

std::optional<std::size_t> difference(std::span<const std::byte> bytes, std::uint64_t seed) {
  std::optional<std::size_t> found;
  for_each_word(bytes.size(), seed, [&](std::size_t offset, std::size_t size, const std::byte* word) {
    for (std::size_t i = 0; !found && i < size; ++i) {
      if (bytes[offset + i] != word[i]) found = offset + i;
    }
    return !found;
  });
  return found;
}

std::optional<std::size_t> first_not(std::span<const std::byte> bytes, std::byte value) {
  const auto found = std::find_if(bytes.begin(), bytes.end(), [value](std::byte b) { return b != value; });
  if (found == bytes.end()) return std::nullopt;
  return static_cast<std::size_t>(found - bytes.begin());
}

}  // namespace p2p::testing
