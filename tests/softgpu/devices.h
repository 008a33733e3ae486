// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "memory.h"

namespace softgpu {

/// Those that this process sees: SOFTGPU_DEVICES (2), of which CUDA_VISIBLE_DEVICES chooses.
int device_count();
Uuid uuid_of(int device);
std::optional<int> find_device(const Uuid& uuid);

/// Also where CUDA_VISIBLE_DEVICES hides it.
bool is_in_this_machine(const Uuid& uuid);

}  // namespace softgpu
