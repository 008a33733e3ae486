// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

namespace p2p::cuda {

/// True if this process has loaded a CUDA driver, with or without this library, and it calls the memory a
/// device's. For builds without CUDA: it needs nothing of it.
bool is_on_a_device(const void* pointer);

}  // namespace p2p::cuda
