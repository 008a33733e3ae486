// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stream.h"

namespace softgpu {

/// `kernel` is one of p2p::kernels::find_kernel's; `arguments` are read before this returns.
void launch(const void* kernel, unsigned ctas, void** arguments, Stream& stream);

}  // namespace softgpu
