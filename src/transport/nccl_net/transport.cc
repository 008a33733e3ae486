// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/mutex.h"
#include "drivers/cuda/device.h"
#include "transport/nccl_net/channel.h"
#include "transport/nccl_net/nccl_net.h"
#include "transport/nccl_net/nearest.h"

namespace p2p::nccl_net {
namespace {

constexpr unsigned kMaxChannels = 16;

/// The GPU's folder in sysfs; empty if that cannot be told.
std::string pci_path_of(int gpu) {
  const auto bus_id = cuda::bus_id_of(gpu);
  if (!bus_id) return "";
  std::error_code error;
  const auto path = std::filesystem::canonical("/sys/bus/pci/devices/" + *bus_id, error);
  return error ? "" : path.string();
}

struct Opened {
  std::shared_ptr<Plugin> plugin;
  std::vector<Device> devices;

  /// Receives land in a pool, of the GPU or, in imitations, in host memory.
  bool unpacks = false;
};

/// The plugin is opened at the first question, once. GPUDirect-TCPX steers the flows of one GPU to one NIC,
/// so a transport serves one GPU: that of the first CUDA memory that it gets, or the one in use when a
/// channel is made before.
class NetTransport final : public Transport {
 public:
  explicit NetTransport(const Options& options)
      : options_(options), registrations_(std::make_shared<RegistrationTable>()) {}

  std::string_view name() const override { return "nccl_net"; }

  Capabilities capabilities() const override {
    // Only the owner knows whether its channels serve the GPU that a region lies in.
    return {.reach = Reach::kNetwork,
            .needs_exported_key = on_gpu(),
            .max_batch_bytes = 2 * kMaxChunkBytes,
            .max_batch_segments = kMaxRanges};
  }

  Status probe() const override;

  bool carries(MemoryPlace local, MemoryPlace remote) const override {
    const MemoryKind kind = on_gpu() ? MemoryKind::kCuda : MemoryKind::kHost;
    return local.kind == kind && remote.kind == kind;
  }

  std::vector<Rail> rails(const PeerPath& path) const override;
  unsigned channels_per_rail(const Rail& rail) const override;

  Result<std::shared_ptr<Registration>> register_memory(const RegionInfo& region) override {
    if (auto taken = check_place(region.place); !taken) return tl::unexpected(taken.error());
    auto registration = std::make_shared<NetRegistration>(region);
    registrations_->add(registration);
    return registration;
  }

  void revoke_memory(const Registration& registration) override { registrations_->revoke(registration); }

  Result<std::unique_ptr<RemoteKey>> import_region(const RegionInfo& region,
                                                   std::span<const std::byte> /*exported*/) override {
    return std::make_unique<RemoteKey>(region);
  }

  Result<std::unique_ptr<Channel>> open_channel(const ChannelSetup& setup) override;

 private:
  const Result<Opened>& opened() const;
  Result<Opened> open() const;
  bool on_gpu() const { return opened() && opened()->unpacks && !options_.nccl_net_host_pool; }
  Status check_place(MemoryPlace place);
  int gpu() const;

  const Options options_;
  std::shared_ptr<RegistrationTable> registrations_;
  mutable Mutex mutex_;
  mutable std::optional<int> gpu_ P2P_GUARDED_BY(mutex_);
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
    if (const auto cuda = cuda::available(); !cuda) {
      return fail(ErrorCode::kUnavailable, "the devices of {} receive into CUDA memory: {}",
                  (*plugin)->name(), cuda.error().message);
    }
  }
  return Opened{std::move(*plugin), std::move(*devices), unpacks};
}

const Result<Opened>& NetTransport::opened() const {
  std::call_once(once_, [this] {
    opened_ = open();
    // Whoever asked for a plugin is not to find out from a bandwidth graph that there is none.
    const bool asked = !options_.nccl_net_plugin.empty() || !options_.transports.empty();
    if (!opened_ && asked) {
      log(LogLevel::kWarning, "no transfer goes through a net plugin: {}", opened_.error().message);
    }
  });
  return opened_;
}

Status NetTransport::probe() const {
  if (!opened()) return tl::unexpected(opened().error());
  return {};
}

int NetTransport::gpu() const {
  const MutexLock lock(mutex_);
  if (!gpu_) gpu_ = cuda::current_device();
  return *gpu_;
}

Status NetTransport::check_place(MemoryPlace place) {
  if (!opened()) return tl::unexpected(opened().error());
  const std::string name = opened()->plugin->name();
  if (!on_gpu()) {
    if (place.kind == MemoryKind::kHost) return {};
    return fail(ErrorCode::kUnavailable, "{} moves host memory only", name);
  }
  if (place.kind == MemoryKind::kHost) {
    return fail(ErrorCode::kUnavailable, "the devices of {} receive into CUDA memory only", name);
  }
  const MutexLock lock(mutex_);
  if (!gpu_) gpu_ = place.device;
  if (*gpu_ == place.device) return {};
  log(LogLevel::kWarning, "memory of CUDA device {} does not go through {}, which serves device {} here",
      place.device, name, *gpu_);
  return fail(ErrorCode::kUnavailable, "the channels of {} serve CUDA device {}: one device an endpoint",
              name, *gpu_);
}

std::vector<Rail> NetTransport::rails(const PeerPath& path) const {
  std::vector<Rail> rails;
  if (opened()) {
    const std::string place = on_gpu() ? pci_path_of(gpu()) : "";
    for (const Device& device : nearest(opened()->devices, place))
      rails.push_back({device.label(), path.local_address});
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
  return NetChannel::open(setup,
                          {.plugin = opened()->plugin,
                           .device = *device,
                           .registrations = registrations_,
                           .type = {.pointer = opened()->unpacks ? abi::kPointerCuda : abi::kPointerHost,
                                    .device = on_gpu() ? gpu() : -1},
                           .gpu_blocks = options_.gpu_blocks,
                           .connect_timeout = options_.connect_timeout,
                           .keepalive = options_.keepalive});
}

}  // namespace

std::unique_ptr<Transport> make(const Options& options) { return std::make_unique<NetTransport>(options); }

}  // namespace p2p::nccl_net
