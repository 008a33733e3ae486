// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "p2p/result.h"

namespace p2p::perf {

/// Bytes from "4096", "64K", "1MiB" or "2GB"; the suffixes are powers of 1024. Zero is not a size.
Result<std::uint64_t> parse_size(std::string_view text);

/// Sizes from a list whose items are sizes or ranges: "4K:64K,1M" is 4K, 8K, 16K, 32K, 64K and 1M. A range
/// doubles from its first size up to its last.
Result<std::vector<std::uint64_t>> parse_sizes(std::string_view text);

/// The shortest exact form: "64K", "1M", "4097".
std::string format_size(std::uint64_t bytes);

/// The parts of a comma-separated list; empty text has none.
std::vector<std::string> split_list(std::string_view text);

}  // namespace p2p::perf
