// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace p2p::testing {

inline constexpr std::size_t kPage = 4096;

/// Zeroed pages that appear as they are touched. Movable.
class Pages {
 public:
  explicit Pages(std::size_t size);
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  ~Pages();

  std::byte* data() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }
  std::span<std::byte> bytes() const { return bytes_; }

  std::span<std::byte> part(std::size_t offset, std::size_t size) const {
    return bytes_.subspan(offset, size);
  }

 private:
  std::span<std::byte> bytes_;
};

/// How memory may become bad under a registration.
enum class Bad : unsigned { kReadOnly, kProtected, kCut, kUnmapped };

/// Makes whole pages bad: read-only, neither readable nor writable, behind the end of their file, or not
/// there: whatever the process maps next may come to lie there.
void spoil(std::span<std::byte> pages, Bad how);

/// Byte `i` of the result depends on `seed` and `i`.
void fill(std::span<std::byte> bytes, std::uint64_t seed);

void set_all(std::span<std::byte> bytes, std::byte value);

/// Where `bytes` first differ from what `fill` makes.
std::optional<std::size_t> difference(std::span<const std::byte> bytes, std::uint64_t seed);

/// Where `bytes` are first not `value`.
std::optional<std::size_t> first_not(std::span<const std::byte> bytes, std::byte value);

/// Where `bytes` are first neither the one nor the other.
std::optional<std::size_t> first_neither(std::span<const std::byte> bytes, std::byte one, std::byte other);

}  // namespace p2p::testing
