// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace p2p {

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

inline ByteView as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

inline std::string to_string(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Only little-endian machines are supported, so values are copied as they lie in memory.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

/// Appends little-endian values to a byte string.
class ByteWriter {
 public:
  explicit ByteWriter(Bytes& out) : out_(out) {}

  template <std::unsigned_integral T>
  void put(T value) {
    put(ByteView(reinterpret_cast<const std::byte*>(&value), sizeof value));
  }

  // Byte by byte: gcc 12 at -O3 warns of overflows in insert and resize that cannot happen.
  void put(ByteView bytes) {
    for (const std::byte byte : bytes) out_.push_back(byte);
  }

  /// Seven bits a byte, the lowest first; the top bit says that more follow.
  void put_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) put(static_cast<std::uint8_t>(value | 0x80));
    put(static_cast<std::uint8_t>(value));
  }

 private:
  Bytes& out_;
};

/// Reads what ByteWriter wrote, from bytes that are not trusted. Once a read runs past the end, `ok` is false
/// and all further reads give zero or nothing: a parser may check once, at its end.
class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : left_(bytes) {}

  bool ok() const { return ok_; }
  std::size_t left() const { return left_.size(); }

  template <std::unsigned_integral T>
  T get() {
    T value{};
    const ByteView bytes = take(sizeof value);
    if (ok_) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }

  /// The next `size` bytes, or none if fewer are left.
  ByteView take(std::uint64_t size) {
    if (!ok_ || size > left_.size()) {
      ok_ = false;
      return {};
    }
    const ByteView bytes = left_.first(size);
    left_ = left_.subspan(size);
    return bytes;
  }

  /// As put_varint wrote it, at most ten bytes.
  std::uint64_t get_varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = get<std::uint8_t>();
      if (!ok_ || (shift == 63 && byte > 1)) break;
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    ok_ = false;
    return 0;
  }

 private:
  ByteView left_;
  bool ok_ = true;
};

}  // namespace p2p
