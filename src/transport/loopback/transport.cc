// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "transport/loopback/channel.h"
#include "transport/loopback/loopback.h"

namespace p2p::loopback {

namespace {

class LoopbackTransport : public Transport {
 public:
  std::string_view name() const override { return "loopback"; }
  Capabilities capabilities() const override { return {.reach = Reach::kProcess}; }
  Status probe() const override { return {}; }

  bool carries(MemoryPlace local, MemoryPlace remote) const override {
    return local.kind == MemoryKind::kHost && remote.kind == MemoryKind::kHost;
  }

  std::vector<Rail> rails(const PeerPath&) const override { return {{.name = "memory", .address = {}}}; }
  unsigned channels_per_rail(const Rail&) const override { return 1; }

  Result<std::shared_ptr<Registration>> register_memory(const RegionInfo& region) override {
    if (region.place.kind != MemoryKind::kHost) {
      return fail(ErrorCode::kUnavailable, "register {} bytes at {} with loopback: it is not host memory",
                  region.size, static_cast<const void*>(region.base));
    }
    auto registration = std::make_shared<Registration>(region);
    regions_->add(registration);
    return registration;
  }

  void revoke_memory(const Registration& registration) override { regions_->revoke(registration); }

  Result<std::unique_ptr<RemoteKey>> import_region(const RegionInfo& region,
                                                   std::span<const std::byte>) override {
    return std::make_unique<RemoteKey>(region);
  }

  Result<std::unique_ptr<Channel>> open_channel(const ChannelSetup& setup) override {
    auto port = Port::open(setup, regions_);
    if (!port) return tl::unexpected(port.error());
    return std::make_unique<LoopbackChannel>(setup, *std::move(port));
  }

 private:
  // Shared with the peers' channels, which may still look a region up while this transport ends.
  const std::shared_ptr<RegistrationTable> regions_ = std::make_shared<RegistrationTable>();
};

}  // namespace

std::unique_ptr<Transport> make(const Options&, const std::shared_ptr<device::Service>&) {
  return std::make_unique<LoopbackTransport>();
}

}  // namespace p2p::loopback
