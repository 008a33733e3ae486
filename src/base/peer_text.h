// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>

#include "base/bytes.h"

namespace p2p {

/// A text that a peer made, or that is made for one. It ends up in errors, in logs and on terminals, and may
/// be copied into every transfer that waits, so it is made fit for them at once: short, and printable ASCII
/// alone, with `?` for everything else.
class PeerText {
 public:
  /// A frame with this one field stays within what is taken from a peer that has not proven itself.
  static constexpr std::size_t kMaxBytes = 1000;

  PeerText() = default;

  /// What is longer than `most` is cut, and ends with "...".
  explicit PeerText(std::string_view raw, std::size_t most) : text_(raw.substr(0, most)) {
    if (raw.size() > most) text_.replace(most - kCut.size(), kCut.size(), kCut);
    std::ranges::replace_if(text_, [](char c) { return c < ' ' || c > '~'; }, '?');
  }

  // NOLINTBEGIN(google-explicit-constructor): any text becomes fit where it is given.
  PeerText(std::string_view raw) : PeerText(raw, kMaxBytes) {}
  PeerText(const std::string& raw) : PeerText(std::string_view(raw)) {}
  PeerText(const char* raw) : PeerText(std::string_view(raw)) {}
  // NOLINTEND(google-explicit-constructor)
  explicit PeerText(ByteView raw)
      : PeerText(std::string_view(reinterpret_cast<const char*>(raw.data()), raw.size())) {}

  const std::string& text() const { return text_; }
  operator const std::string&() const { return text_; }  // NOLINT(google-explicit-constructor)
  operator std::string_view() const { return text_; }    // NOLINT(google-explicit-constructor)
  bool empty() const { return text_.empty(); }

  friend bool operator==(const PeerText&, const PeerText&) = default;
  template <std::convertible_to<std::string_view> T>
    requires(!std::same_as<T, PeerText>)
  friend bool operator==(const PeerText& text, const T& other) {
    return text.text_ == std::string_view(other);
  }

 private:
  static constexpr std::string_view kCut = "...";

  std::string text_;
};

}  // namespace p2p

template <>
struct fmt::formatter<p2p::PeerText> : fmt::formatter<std::string_view> {
  auto format(const p2p::PeerText& text, fmt::format_context& context) const {
    return fmt::formatter<std::string_view>::format(text.text(), context);
  }
};
