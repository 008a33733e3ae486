// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "p2p/result.h"

/// The texts of option values: reading them, and writing them as `option_rows` shows them. Errors are
/// kInvalidArgument and do not name the option, which the caller knows.
namespace p2p::option_text {

std::string_view trim(std::string_view text);

/// Smallest and largest value that is allowed. They also keep sums and products of options within their
/// types.
struct Bounds {
  std::uint64_t least = 0;
  std::uint64_t most = 0;
};

Result<std::uint64_t> parse_number(std::string_view text, Bounds bounds);

template <class Field>
Status read_number(std::string_view text, Bounds bounds, Field& field) {
  return parse_number(text, bounds).map([&](std::uint64_t value) { field = Field(value); });
}

/// A number of bytes; K, M and G behind it multiply it by 1024, 1024^2 and 1024^3.
Status read_size(std::string_view text, Bounds bounds, std::size_t& field);
std::string show_size(std::size_t size);

Status read_flag(std::string_view text, bool& field);
std::string show_flag(bool field);

/// Comma-separated names. An empty one between commas is an error, as it is mostly a typing mistake.
Status read_list(std::string_view text, std::vector<std::string>& field);
std::string show_list(const std::vector<std::string>& words);

}  // namespace p2p::option_text
