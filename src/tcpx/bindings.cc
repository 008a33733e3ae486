// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "tcpx/bindings.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"

namespace tcpx {
namespace {

/// CPUs from one number to another, with their ends.
struct Range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;

  bool meets(const Range& other) const { return first <= other.last && other.first <= last; }
  std::string text() const { return fmt::format("{}-{}", first, last); }
};
using Ranges = std::vector<Range>;

/// A lone number is no range for the plugin, and one for the kernel.
std::optional<Range> range_of(std::string_view text, bool lone) {
  const auto ends = split(text, '-');
  if (ends.size() != 2 && !(lone && ends.size() == 1)) return std::nullopt;
  const auto first = number_of(ends.front()), last = number_of(ends.back());
  if (!first || !last || *first > *last) return std::nullopt;
  return Range{*first, *last};
}

Ranges cpus_online() {
  std::ifstream file("/sys/devices/system/cpu/online");
  std::string text;
  file >> text;
  Ranges online;
  for (const std::string_view part : split(text, ',')) {
    if (const auto range = range_of(part, true)) online.push_back(*range);
  }
  if (online.empty()) online.push_back({0, static_cast<std::uint64_t>(::sysconf(_SC_NPROCESSORS_ONLN)) - 1});
  return online;
}

/// The first of `wanted` that is not online.
std::optional<std::uint64_t> missing_cpu(const Range& wanted, const Ranges& online) {
  for (std::uint64_t cpu = wanted.first; cpu <= wanted.last; ++cpu) {
    const auto holds = [cpu](const Range& range) { return range.first <= cpu && cpu <= range.last; };
    if (std::ranges::none_of(online, holds)) return cpu;
  }
  return std::nullopt;
}

std::string wrong_with_ranges(std::string_view interface, std::string_view list) {
  const Ranges online = cpus_online();
  Ranges seen;
  for (const std::string_view text : split(list, ',')) {
    const auto range = range_of(text, false);
    if (!range) return fmt::format("'{}' is not a range A-B", text);
    if (const auto cpu = missing_cpu(*range, online)) return fmt::format("there is no CPU {}", *cpu);
    const auto met = std::ranges::find_if(seen, [&](const Range& other) { return other.meets(*range); });
    if (met != seen.end()) {
      return fmt::format("{} and {} of {} overlap", met->text(), range->text(), interface);
    }
    seen.push_back(*range);
  }
  return "";
}

Ranges all_ranges(std::string_view list) {
  Ranges ranges;
  for (const std::string_view part : split(list, ';')) {
    for (const std::string_view text :
         split(part.substr(std::min(part.find(':'), part.size() - 1) + 1), ',')) {
      if (const auto range = range_of(text, false)) ranges.push_back(*range);
    }
  }
  return ranges;
}

}  // namespace

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string wrong_with_bindings(std::string_view list) {
  std::set<std::string_view> seen;
  for (const std::string_view part : split(list, ';')) {
    const auto sides = split(part, ':');
    if (sides.size() != 2) return fmt::format("'{}' is not INTERFACE:A-B", part);
    const std::string_view interface = sides[0];
    std::error_code error;
    if (!std::filesystem::exists(fmt::format("/sys/class/net/{}", interface), error)) {
      return fmt::format("there is no interface {}", interface);
    }
    if (!seen.insert(interface).second) return fmt::format("{} is named twice: the last counts", interface);
    if (std::string wrong = wrong_with_ranges(interface, sides[1]); !wrong.empty()) return wrong;
  }
  return "";
}

std::optional<std::uint64_t> shared_cpu(std::string_view one, std::string_view other) {
  const Ranges theirs = all_ranges(other);
  for (const Range& range : all_ranges(one)) {
    const auto met = std::ranges::find_if(theirs, [&](const Range& their) { return their.meets(range); });
    if (met != theirs.end()) return std::max(range.first, met->first);
  }
  return std::nullopt;
}

}  // namespace tcpx
