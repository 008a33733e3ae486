// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "memory.h"

namespace softgpu {

// What the runtime and the driver both do. Results are CUDA's codes, which are the same numbers for both.

/// Memory of the current device at addresses of its own.
int allocate(Range::Kind kind, std::size_t size, std::uintptr_t& address);

/// The same of managed memory, which the processor reaches as well.
int allocate_managed(std::size_t size, std::uintptr_t& address);

/// Waits until all work of the process is done, as CUDA does.
int take_away(std::uintptr_t address);

using LegacyHandle = std::array<std::byte, 64>;

int share(LegacyHandle& handle, std::uintptr_t address);
int open_shared(const LegacyHandle& handle, std::uintptr_t& address);

void wait_for_all();

}  // namespace softgpu
