// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "device/lifetime.h"
#include "drivers/verbs/memory.h"
#include "transport/registration.h"

namespace p2p::rdma {

/// Devices whose keys travel in one exported key.
inline constexpr std::size_t kMaxDevices = 64;

/// My memory, registered with every device in use. Its keys, here and at peers, die with it.
class RdmaRegistration : public device::WithLifetime<Registration> {
 public:
  static Result<std::shared_ptr<RdmaRegistration>> add(
      std::span<const std::shared_ptr<verbs::Device>> devices, const RegionInfo& info);

  /// One remote key a device.
  std::vector<std::byte> export_key() const override;

  std::uint32_t local_key(std::size_t device) const { return regions_[device].local_key(); }

 private:
  using WithLifetime::WithLifetime;

  std::vector<verbs::MemoryRegion> regions_;  ///< one a device
};

/// A peer's memory.
class RdmaKey : public RemoteKey {
 public:
  /// kProtocol unless `exported` holds the keys of a range of memory.
  static Result<std::unique_ptr<RdmaKey>> parse(const RegionInfo& info, ByteView exported);

  /// False: the peer has not registered it with that device of its own.
  bool has(std::size_t device) const { return device < keys_.size(); }
  std::uint32_t remote_key(std::size_t device) const { return keys_[device]; }

 private:
  using RemoteKey::RemoteKey;
  std::vector<std::uint32_t> keys_;
};

}  // namespace p2p::rdma
