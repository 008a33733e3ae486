// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/option_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "base/error.h"

namespace p2p::option_text {

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

Result<std::uint64_t> parse_number(std::string_view text, Bounds bounds) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || value < bounds.least || value > bounds.most) {
    return fail(ErrorCode::kInvalidArgument, "not a whole number from {} to {}", bounds.least, bounds.most);
  }
  return value;
}

Status read_size(std::string_view text, Bounds bounds, std::size_t& field) {
  unsigned shift = 0;
  switch (text.empty() ? '\0' : text.back()) {
    case 'K':
    case 'k': shift = 10; break;
    case 'M':
    case 'm': shift = 20; break;
    case 'G':
    case 'g': shift = 30; break;
    default: break;
  }
  const auto count = parse_number(shift == 0 ? text : text.substr(0, text.size() - 1),
                                  {0, std::numeric_limits<std::uint64_t>::max() >> shift});
  if (!count || *count << shift < bounds.least || *count << shift > bounds.most) {
    return fail(ErrorCode::kInvalidArgument, "not a size from {} to {} bytes (4096, 64K, 1M, 1G)",
                bounds.least, bounds.most);
  }
  field = *count << shift;
  return {};
}

std::string show_size(std::size_t size) {
  constexpr std::array<std::pair<unsigned, char>, 3> kUnits{{{30, 'G'}, {20, 'M'}, {10, 'K'}}};
  for (const auto& [shift, letter] : kUnits) {
    if (size != 0 && size % (std::size_t{1} << shift) == 0) return fmt::format("{}{}", size >> shift, letter);
  }
  return std::to_string(size);
}

Status read_flag(std::string_view text, bool& field) {
  for (const std::string_view yes : {"1", "true", "yes", "on"}) {
    if (text == yes) return field = true, Status{};
  }
  for (const std::string_view no : {"0", "false", "no", "off"}) {
    if (text == no) return field = false, Status{};
  }
  return fail(ErrorCode::kInvalidArgument, "neither 1 (true, yes, on) nor 0 (false, no, off)");
}

std::string show_flag(bool field) { return field ? "1" : "0"; }

Status read_list(std::string_view text, std::vector<std::string>& field) {
  if (text.empty()) return field.clear(), Status{};
  std::vector<std::string> words;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    const std::string_view word = trim(text.substr(start, end - start));
    if (word.empty()) return fail(ErrorCode::kInvalidArgument, "an empty name in a comma-separated list");
    words.emplace_back(word);
    start = end + 1;
  }
  field = std::move(words);
  return {};
}

std::string show_list(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, ","));
}

}  // namespace p2p::option_text
