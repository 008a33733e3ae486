// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "api/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

namespace p2p {
namespace {

constexpr int kMostDeep = 16;
constexpr int kMostValues = 1 << 18;

}  // namespace

class Json::Reader {
 public:
  explicit Reader(std::string_view text) : left_(text) {}

  std::optional<Json> all() {
    Json value;
    return read(value, kMostDeep) && peek() == 0 && left_.empty() ? std::optional(std::move(value))
                                                                  : std::nullopt;
  }

 private:
  /// The next character that is no space; 0: none.
  char peek() {
    left_.remove_prefix(std::min(left_.find_first_not_of(" \t\r\n"), left_.size()));
    return left_.empty() ? '\0' : left_.front();
  }

  bool read(Json& value, int deep) {
    if (deep == 0 || ++values_ > kMostValues) return false;
    if (peek() == '{') return read_object(value, deep);
    if (peek() == '[') return read_list(value, deep);
    auto scalar = peek() == '"' ? text() : word();
    if (scalar) value.scalar_ = std::move(*scalar);
    return scalar.has_value();
  }

  bool read_object(Json& value, int deep) {
    value.kind_ = Kind::kObject;
    take('{');
    while (!take('}')) {
      if (!value.list_.empty() && !take(',')) return false;
      auto name = text();
      if (!name || !take(':') || !read(value.list_.emplace_back(), deep - 1)) return false;
      value.names_.push_back(std::move(*name));
    }
    return true;
  }

  bool read_list(Json& value, int deep) {
    value.kind_ = Kind::kList;
    take('[');
    while (!take(']')) {
      if (!value.list_.empty() && !take(',')) return false;
      if (!read(value.list_.emplace_back(), deep - 1)) return false;
    }
    return true;
  }

  bool take(char wanted) {
    if (peek() != wanted) return false;
    left_.remove_prefix(1);
    return true;
  }

  std::optional<std::string> word() {
    const std::string_view word = left_.substr(0, left_.find_first_of(" \t\r\n,]}"));
    left_.remove_prefix(word.size());
    if (word.empty() || word.find_first_of("{[\"") != std::string_view::npos) return std::nullopt;
    return std::string(word);
  }

  std::optional<std::string> text() {
    if (!take('"')) return std::nullopt;
    std::string out;
    while (!left_.empty()) {
      const char c = left_.front();
      left_.remove_prefix(1);
      if (c == '"') return out;
      if (c != '\\') {
        out.push_back(c);
      } else if (!escaped(out)) {
        return std::nullopt;
      }
    }
    return std::nullopt;
  }

  /// What stands after a backslash.
  bool escaped(std::string& out) {
    if (left_.empty()) return false;
    const char c = left_.front();
    left_.remove_prefix(1);
    constexpr std::string_view kShort = "\"\"\\\\//b\bf\fn\nr\rt\t";
    for (std::size_t i = 0; i < kShort.size(); i += 2) {
      if (kShort[i] == c) return out.push_back(kShort[i + 1]), true;
    }
    const auto unit = c == 'u' ? hexadecimal() : std::nullopt;
    if (!unit || (*unit >= 0xdc00 && *unit < 0xe000)) return false;
    if (*unit < 0xd800 || *unit >= 0xe000) return append(out, *unit), true;
    // The first half of a letter beyond 16 bits.
    if (!left_.starts_with("\\u")) return false;
    left_.remove_prefix(2);
    const auto second = hexadecimal();
    if (!second || *second < 0xdc00 || *second >= 0xe000) return false;
    append(out, 0x10000 + ((*unit - 0xd800) << 10) + (*second - 0xdc00));
    return true;
  }

  /// Four digits.
  std::optional<std::uint32_t> hexadecimal() {
    std::uint32_t code = 0;
    if (left_.size() < 4) return std::nullopt;
    const auto [end, error] = std::from_chars(left_.data(), left_.data() + 4, code, 16);
    if (error != std::errc() || end != left_.data() + 4) return std::nullopt;
    left_.remove_prefix(4);
    return code;
  }

  /// As UTF-8.
  static void append(std::string& out, std::uint32_t code) {
    if (code < 0x80) return out.push_back(static_cast<char>(code));
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr unsigned kFirst[] = {0xc0, 0xe0, 0xf0};
    out.push_back(static_cast<char>(kFirst[more - 1] | code >> (6 * more)));
    for (int i = more - 1; i >= 0; --i) out.push_back(static_cast<char>(0x80 | (code >> (6 * i) & 0x3f)));
  }

  std::string_view left_;
  int values_ = 0;
};

std::optional<Json> Json::parse(std::string_view text) { return Reader(text).all(); }

const Json* Json::find(std::string_view name) const {
  const auto found = std::find(names_.rbegin(), names_.rend(), name);
  return found == names_.rend() ? nullptr : &list_[static_cast<std::size_t>(names_.rend() - found) - 1];
}

std::string Json::quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    if (static_cast<unsigned char>(c) < ' ') {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out.push_back(c);
    }
  }
  return out + "\"";
}

}  // namespace p2p
