// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/unpacker.h"
#include "drivers/cuda/device.h"
#include "drivers/nccl_net/plugin.h"
#include "transport/nccl_net/memory.h"
#include "transport/registration.h"

namespace p2p::nccl_net {

/// What the transport gives to each of its channels.
struct ChannelConfig {
  std::shared_ptr<Plugin> plugin;
  Device device;
  std::vector<Device> devices;  ///< all that there are
  std::shared_ptr<const RegistrationTable> registrations;
  Flow flow;
  std::shared_ptr<device::Unpacker> unpacker;  ///< of the flow's device, shared by its channels
  std::uint64_t most_bytes = 0;  ///< of batches under way, or one batch; the rest is left to other channels
  std::chrono::milliseconds connect_timeout{10000};
  std::chrono::milliseconds keepalive{3000};
  std::chrono::milliseconds hung{30000};
};

/// Plugins want the CUDA device to be current in every call.
struct OnDevice {
  explicit OnDevice(const Flow& flow) {
    if (flow.device >= 0) guard.emplace(flow.device);
  }
  std::optional<cuda::DeviceGuard> guard;
};

}  // namespace p2p::nccl_net
