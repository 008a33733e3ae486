// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// An entry is a flat JSON object, as Python's json writes it.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string_view>

#include "api/directory_drivers.h"

namespace p2p::directories {
namespace {

using SystemClock = std::chrono::system_clock;

double seconds_of(SystemClock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string json_text(std::string_view text) {
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

/// Reads a JSON object of texts and numbers.
class Reader {
 public:
  explicit Reader(std::string_view text) : left_(text) {}

  std::optional<std::map<std::string, std::string>> object() {
    std::map<std::string, std::string> fields;
    if (!take('{')) return std::nullopt;
    while (!take('}')) {
      if (!fields.empty() && !take(',')) return std::nullopt;
      const auto name = text();
      if (!name || !take(':')) return std::nullopt;
      auto value = peek() == '"' ? text() : word();
      if (!value) return std::nullopt;
      fields[*name] = std::move(*value);
    }
    return peek() == 0 ? std::optional(fields) : std::nullopt;
  }

 private:
  /// The next character that is no space; 0: none.
  char peek() {
    left_.remove_prefix(std::min(left_.find_first_not_of(" \t\r\n"), left_.size()));
    return left_.empty() ? '\0' : left_.front();
  }

  bool take(char wanted) {
    if (peek() != wanted) return false;
    left_.remove_prefix(1);
    return true;
  }

  std::optional<std::string> word() {
    const std::string_view word = left_.substr(0, left_.find_first_of(" \t\r\n,}"));
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
};

}  // namespace

std::string text_of(const DirectoryEntry& entry, SystemClock::time_point until) {
  return fmt::format(R"({{"address": {}, "port": {}, "gpu": {}, "until": {:.6f}}})", json_text(entry.address),
                     entry.port, is_number(entry.gpu) ? entry.gpu : json_text(entry.gpu), seconds_of(until));
}

std::optional<DirectoryEntry> parse(const std::string& name, std::string_view text,
                                    SystemClock::time_point now) {
  const auto fields = Reader(text).object();
  if (!fields || !fields->contains("address") || !fields->contains("port") || !fields->contains("gpu"))
    return std::nullopt;
  DirectoryEntry entry{name, fields->at("address"), 0, fields->at("gpu")};
  const std::string& port = fields->at("port");
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), entry.port);
  if (error != std::errc() || end != port.data() + port.size() || entry.port == 0) return std::nullopt;
  if (const auto until = fields->find("until"); until != fields->end()) {
    char* stop = nullptr;
    const double when = std::strtod(until->second.c_str(), &stop);
    if (stop == until->second.c_str() || !(when >= seconds_of(now))) return std::nullopt;
  }
  return entry;
}

}  // namespace p2p::directories
