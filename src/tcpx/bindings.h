// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The plugin's lists of CPUs for the helper threads of each NIC: "eth1:8-21,112-125;eth2:8-21".
namespace tcpx {

std::vector<std::string_view> split(std::string_view text, char separator);

/// The plugin reads digits and ignores what follows: "512K" is 512. None for such a text.
std::optional<std::uint64_t> number_of(std::string_view text);

/// What is wrong with one list by itself; empty: nothing.
std::string wrong_with_bindings(std::string_view list);

/// The first CPU that both lists give away; none where one of them cannot be read.
std::optional<std::uint64_t> shared_cpu(std::string_view one, std::string_view other);

}  // namespace tcpx
