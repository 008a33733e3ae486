// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include "p2p/result.h"

/// Who a process is, as Linux tells it. Errors are kSystem where /proc cannot be read.
namespace p2p {

/// A UUID of this boot of this machine, as text of 36 characters.
Result<std::string> boot_id();

/// A number for the namespace of this process, "pid" or "net": equal for processes in the same one.
Result<std::uint64_t> namespace_id(const char* kind);

/// When a process of this namespace started, in clock ticks after boot; kNotFound if there is none.
Result<std::uint64_t> start_of(std::uint64_t pid);

/// Tells one process of one boot of one machine from every other, across containers.
struct ProcessId {
  std::array<std::byte, 16> boot{};
  std::uint64_t pid_namespace = 0;
  std::uint64_t pid = 0;
  std::uint64_t started = 0;  ///< see start_of; the kernel reuses pids
  friend auto operator<=>(const ProcessId&, const ProcessId&) = default;
};

Result<ProcessId> this_process();

}  // namespace p2p
