// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "transport/nccl_net/channel.h"
#include "transport/nccl_net/nccl_net.h"

namespace p2p::nccl_net {
namespace {

constexpr unsigned kMaxChannels = 16;

struct Opened {
  std::shared_ptr<Plugin> plugin;
  std::vector<Device> devices;
};

/// The plugin is opened at the first question, once.
class NetTransport final : public Transport {
 public:
  explicit NetTransport(const Options& options)
      : options_(options), registrations_(std::make_shared<RegistrationTable>()) {}

  std::string_view name() const override { return "nccl_net"; }

  Capabilities capabilities() const override {
    return {.reach = Reach::kNetwork, .max_batch_bytes = 2 * kChunkBytes, .max_batch_segments = kMaxRanges};
  }

  Status probe() const override;

  bool carries(MemoryPlace local, MemoryPlace remote) const override {
    return local.kind == MemoryKind::kHost && remote.kind == MemoryKind::kHost;
  }

  std::vector<Rail> rails(const PeerPath& path) const override;
  unsigned channels_per_rail(const Rail& rail) const override;

  Result<std::shared_ptr<Registration>> register_memory(const RegionInfo& region) override {
    auto registration = std::make_shared<NetRegistration>(region);
    registrations_->add(registration);
    return registration;
  }

  void revoke_memory(const Registration& registration) override {
    registrations_->remove(registration.info().id);
    registration.revoke();
  }

  Result<std::unique_ptr<RemoteKey>> import_region(const RegionInfo& region,
                                                   std::span<const std::byte> /*exported*/) override {
    return std::make_unique<RemoteKey>(region);
  }

  Result<std::unique_ptr<Channel>> open_channel(const ChannelSetup& setup) override;

 private:
  const Result<Opened>& opened() const;
  Result<Opened> open() const;

  const Options options_;
  std::shared_ptr<RegistrationTable> registrations_;
  mutable std::once_flag once_;
  mutable Result<Opened> opened_ = fail(ErrorCode::kUnavailable, "not asked yet");
};

Result<Opened> NetTransport::open() const {
  if (options_.nccl_net_plugin.empty()) {
    // Unasked, only the plugin that is the machine's fast path is loaded: others belong to NCCL.
    const auto found = Plugin::peek_name("");
    if (!found) return fail(ErrorCode::kUnavailable, "no net plugin is set: {}", found.error().message);
    if (!found->starts_with("GPUDirectTCPX")) {
      return fail(ErrorCode::kUnavailable,
                  "no net plugin is set, and libnccl-net.so is {}, not GPUDirectTCPX", *found);
    }
  }
  auto plugin = Plugin::open(options_.nccl_net_plugin);
  if (!plugin) return tl::unexpected(plugin.error());
  auto devices = (*plugin)->devices();
  if (!devices) return tl::unexpected(devices.error());
  const bool unpacks = devices->front().properties.unpacks();
  if (unpacks && !options_.nccl_net_host_pool) {
    return fail(ErrorCode::kUnavailable, "the devices of {} receive into CUDA memory, which is not moved yet",
                (*plugin)->name());
  }
  return Opened{std::move(*plugin), std::move(*devices)};
}

const Result<Opened>& NetTransport::opened() const {
  std::call_once(once_, [this] { opened_ = open(); });
  return opened_;
}

Status NetTransport::probe() const {
  if (!opened()) return tl::unexpected(opened().error());
  return {};
}

std::vector<Rail> NetTransport::rails(const PeerPath& path) const {
  std::vector<Rail> rails;
  if (opened()) {
    for (const Device& device : opened()->devices) rails.push_back({device.label(), path.local_address});
  }
  if (rails.empty()) rails.push_back({"none", path.local_address});
  return rails;
}

unsigned NetTransport::channels_per_rail(const Rail& /*rail*/) const {
  if (options_.streams != 0) return std::min(options_.streams, kMaxChannels);
  return std::clamp(std::thread::hardware_concurrency() / 2, 1U, 4U);
}

Result<std::unique_ptr<Channel>> NetTransport::open_channel(const ChannelSetup& setup) {
  if (!opened()) return tl::unexpected(opened().error());
  const auto device = std::ranges::find(opened()->devices, setup.rail.name, &Device::label);
  if (device == opened()->devices.end()) {
    return fail(ErrorCode::kNotFound, "open a channel: {} has no device {}", opened()->plugin->name(),
                setup.rail.name);
  }
  return NetChannel::open(
      setup, {.plugin = opened()->plugin,
              .device = *device,
              .registrations = registrations_,
              .type = options_.nccl_net_host_pool && device->properties.unpacks() ? abi::kPointerCuda
                                                                                  : abi::kPointerHost,
              .connect_timeout = options_.connect_timeout,
              .keepalive = options_.keepalive});
}

}  // namespace

std::unique_ptr<Transport> make(const Options& options) { return std::make_unique<NetTransport>(options); }

}  // namespace p2p::nccl_net
