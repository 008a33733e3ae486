// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "p2p/memory.h"

namespace p2p::weights {

/// Appends numbers, little endian, and texts to bytes for a peer.
class Writer {
 public:
  template <std::unsigned_integral T>
  void number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      out_.push_back(static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
  }
  void text(std::string_view value) {
    number(static_cast<std::uint32_t>(value.size()));
    out_ += value;
  }
  void raw(std::string_view bytes) { out_ += bytes; }
  void region(const RegionDescriptor& region) {
    const auto bytes = region.serialize();
    raw({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }

  const std::string& bytes() const { return out_; }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

/// Reads what a `Writer` of a peer wrote. Nothing beyond the end is read: after the first lack all is 0 and
/// empty, and `ok` is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <std::unsigned_integral T>
  T number() {
    const std::string_view bytes = raw(sizeof(T));
    std::uint64_t value = 0;
    for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return static_cast<T>(value);
  }

  std::string_view text(std::size_t most) {
    const auto size = number<std::uint32_t>();
    if (size > most) fail();
    return raw(ok_ ? size : 0);
  }

  std::string_view raw(std::size_t size) {
    if (size > rest_.size()) fail();
    if (!ok_) return {};
    const std::string_view out = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return out;
  }

  /// One that `RegionDescriptor::parse` refuses is a lack, too.
  RegionDescriptor region() {
    const std::string_view bytes = raw(RegionDescriptor::kBytes);
    const auto parsed = RegionDescriptor::parse(std::as_bytes(std::span(bytes.data(), bytes.size())));
    if (!parsed) fail();
    return parsed ? *parsed : RegionDescriptor{};
  }

  /// A count of rows that take at least `each` bytes: more than can follow is a lack.
  std::uint32_t count(std::size_t each) {
    const auto rows = number<std::uint32_t>();
    if (rows > rest_.size() / each) fail();
    return ok_ ? rows : 0;
  }

  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && rest_.empty(); }

 private:
  void fail() { ok_ = false; }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace p2p::weights
