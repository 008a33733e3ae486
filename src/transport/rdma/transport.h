// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "drivers/verbs/library.h"
#include "transport/rdma/fabric.h"
#include "transport/transport.h"

namespace p2p::rdma {

/// Opens the devices at first use and keeps them open.
class RdmaTransport final : public Transport {
 public:
  /// `library`: in place of this machine's libibverbs, for tests.
  explicit RdmaTransport(const Options& options, const verbs::Library* library = nullptr);

  std::string_view name() const override { return "rdma"; }
  Capabilities capabilities() const override;
  Status probe() const override;
  bool carries(MemoryPlace local, MemoryPlace remote) const override;
  std::vector<Rail> rails(const PeerPath& path) const override;
  unsigned channels_per_rail(const Rail& rail) const override;
  Result<std::shared_ptr<Registration>> register_memory(const RegionInfo& region) override;
  void revoke_memory(const Registration& registration) override;
  Result<std::unique_ptr<RemoteKey>> import_region(const RegionInfo& region,
                                                   std::span<const std::byte> exported) override;
  Result<std::unique_ptr<Channel>> open_channel(const ChannelSetup& setup) override;

 private:
  const Result<std::shared_ptr<const Fabric>>& fabric() const;

  const Options options_;
  const verbs::Library* const library_;
  mutable std::once_flag opened_;
  mutable Result<std::shared_ptr<const Fabric>> fabric_;
};

}  // namespace p2p::rdma
