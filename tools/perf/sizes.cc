// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "sizes.h"

#include <array>
#include <charconv>
#include <limits>

#include "failure.h"

namespace p2p::perf {
namespace {

struct Unit {
  char letter;
  unsigned shift;
};
constexpr std::array kUnits{Unit{'T', 40}, Unit{'G', 30}, Unit{'M', 20}, Unit{'K', 10}};

tl::unexpected<Error> not_a_size(std::string_view text) {
  return fail(ErrorCode::kInvalidArgument, "\"{}\" is not a size such as 4096, 64K or 1M", text);
}

}  // namespace

Result<std::uint64_t> parse_size(std::string_view text) {
  std::uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || value == 0) return not_a_size(text);
  std::string_view suffix(after, static_cast<std::size_t>(end - after));
  if (suffix.empty()) return value;
  for (const Unit& unit : kUnits) {
    if ((suffix[0] & ~0x20) != unit.letter) continue;
    suffix.remove_prefix(1);
    if (!suffix.empty() && suffix != "B" && suffix != "iB") return not_a_size(text);
    if (value > std::numeric_limits<std::uint64_t>::max() >> unit.shift) return not_a_size(text);
    return value << unit.shift;
  }
  return not_a_size(text);
}

Result<std::vector<std::uint64_t>> parse_sizes(std::string_view text) {
  std::vector<std::uint64_t> sizes;
  for (const std::string& item : split_list(text)) {
    const std::size_t colon = item.find(':');
    const auto first = parse_size(item.substr(0, colon));
    if (!first) return tl::unexpected(first.error());
    const auto last = colon == std::string::npos ? first : parse_size(item.substr(colon + 1));
    if (!last) return tl::unexpected(last.error());
    if (*last < *first) return fail(ErrorCode::kInvalidArgument, "the range \"{}\" runs backwards", item);
    for (std::uint64_t size = *first; size <= *last; size *= 2) {
      sizes.push_back(size);
      if (size > *last / 2) break;
    }
  }
  if (sizes.empty()) return not_a_size(text);
  return sizes;
}

std::string format_size(std::uint64_t bytes) {
  for (const Unit& unit : kUnits) {
    const std::uint64_t one = std::uint64_t{1} << unit.shift;
    if (bytes >= one && bytes % one == 0) return fmt::format("{}{}", bytes / one, unit.letter);
  }
  return fmt::format("{}", bytes);
}

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    parts.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  return parts;
}

}  // namespace p2p::perf
