// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "device/service.h"

namespace p2p {

/// What an endpoint of these options would make its transports with.
inline std::shared_ptr<device::Service> test_devices(const Options& options = {}) {
  return std::make_shared<device::Service>(options);
}

}  // namespace p2p
