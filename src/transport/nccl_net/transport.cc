// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "device/service.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"
#include "drivers/cuda/place.h"
#include "drivers/nccl_net/handle.h"
#include "drivers/nccl_net/nearest.h"
#include "drivers/nccl_net/receive_manager.h"
#include "drivers/nccl_net/tcpx.h"
#include "drivers/nccl_net/tcpxo.h"
#include "transport/nccl_net/channel.h"
#include "transport/nccl_net/gpus.h"
#include "transport/nccl_net/nccl_net.h"

namespace p2p::nccl_net {
namespace {

// What one transfer is dealt out in, at least: smaller batches cost the engine more than they spread.
constexpr std::size_t kLeastBatch = std::size_t{1} << 20;

// Comms for a NIC: one for each 60 Gbit/s, which one flow of copies carries on current machines, and what a
// NIC of 200 Gbit/s gets where the plugin says less: it may not know. Loopback of 32 cores was quickest with
// 16 (38 GB/s between two GPUs; four of them 18).
constexpr int kFlowSpeed = 60'000;  // Mbit/s
constexpr unsigned kLeastFlows = 4;
constexpr unsigned kMostFlows = NcclNetOptions::kMostChannels;

/// The GPU's folder in sysfs; empty if that cannot be told.
std::string place_of(int gpu) {
  const auto bus_id = cuda::bus_id_of(gpu);
  return bus_id ? pci_path_of(*bus_id) : "";
}

struct Opened {
  std::shared_ptr<Plugin> plugin;
  std::vector<Device> devices;

  /// Memory of GPUs is what moves, or, in imitations, memory of the host that is registered as such.
  bool cuda = false;

  /// Of one message at most.
  std::size_t chunk_bytes = 0;
};

/// A NIC and the GPU that its channels belong to; -1: host memory.
struct Pair {
  Device device;
  int gpu = -1;

  std::string name() const {
    return gpu < 0 ? device.label() : fmt::format("{} for CUDA device {}", device.label(), gpu);
  }
};

/// Where a channel of that GPU, -1: of none, would have GPUDirect-TCPX end the process.
Status check_accepts_of(const Plugin& plugin, int gpu) {
  if (gpu < 0) return {};
  return check_accepts(plugin,
                       {gpu, cuda::bus_id_of(gpu), [gpu] { return cuda::try_small_allocations(gpu); }});
}

/// What makes the memory of one device usable to another's kernels.
Status let_reach(int device, int peer) {
  if (!cuda::reaches(device, peer)) {
    return fail(ErrorCode::kUnavailable, "CUDA device {} does not reach the memory of device {}", device,
                peer);
  }
  return cuda::enable_peer(device, peer);
}

/// The plugin is opened at the first question, once. Where its devices take CUDA memory and there is some,
/// that is what moves, else host memory. GPUDirect-TCPX steers the flows of one GPU to the NIC next to it, so
/// channels are made for pairs of both: for each GPU that has memory registered when a peer connects, or the
/// one in use if there is none.
class NetTransport final : public Transport {
 public:
  NetTransport(const Options& options, std::shared_ptr<device::Service> devices)
      : options_(options),
        devices_(std::move(devices)),
        gpus_(let_reach),
        registrations_(std::make_shared<RegistrationTable>()) {}

  std::string_view name() const override { return "nccl_net"; }

  Capabilities capabilities() const override {
    // Only the owner knows whether its channels reach the GPU that a region lies in.
    return {.reach = Reach::kNetwork,
            .needs_exported_key = on_gpu(),
            .named = asked(),
            .reopens = true,
            .max_batch_bytes = std::max(2 * (opened() ? opened()->chunk_bytes : 0), kLeastBatch),
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
    if (auto taken = check_place(region); !taken) return tl::unexpected(taken.error());
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
  bool asked() const;
  Result<Opened> open() const;
  Status take_usable(Opened& opened, std::vector<Device> devices) const;
  bool on_gpu() const { return opened() && opened()->cuda && !options_.nccl_net.host_pool; }
  Status check_place(const RegionInfo& region);
  std::vector<Pair> pairs() const;
  std::uint64_t most_bytes(const Rail& rail) const;

  const Options options_;
  const std::shared_ptr<device::Service> devices_;
  mutable Gpus gpus_;
  std::shared_ptr<RegistrationTable> registrations_;
  mutable std::once_flag once_;
  mutable Result<Opened> opened_ = fail(ErrorCode::kUnavailable, "not asked yet");
};

bool names_this(const std::vector<std::string>& transports) {
  return std::ranges::any_of(transports,
                             [](const std::string& name) { return name == "nccl_net" || name == "tcpx"; });
}

tl::unexpected<Error> no_cuda(const std::string& plugin, const Error& why) {
  return fail(ErrorCode::kUnavailable, "the devices of {} receive into CUDA memory: {}", plugin, why.message);
}

Result<Opened> NetTransport::open() const {
  if (options_.nccl_net.plugin.empty()) {
    // Unasked, only the plugin that is the machine's fast path is loaded: others belong to NCCL.
    const auto found = Plugin::peek_name("");
    if (!found) return fail(ErrorCode::kUnavailable, "no net plugin is set: {}", found.error().message);
    if (!is_tcpx(*found)) {
      return fail(ErrorCode::kUnavailable,
                  "no net plugin is set, and libnccl-net.so is {}, not GPUDirectTCPX", *found);
    }
  }
  // Asked before `init`, which for some plugins ends the process where there is no CUDA.
  const Status cuda = cuda::available();
  const bool host_pool = options_.nccl_net.host_pool;
  if (!cuda && !host_pool) {
    const auto name = Plugin::peek_name(options_.nccl_net.plugin);
    if (name && is_gpudirect(*name)) return no_cuda(*name, cuda.error());
  }
  std::optional<cuda::DeviceGuard> guard;  // some plugins make much for the device that is current
  if (cuda) guard.emplace(cuda::kAnyDevice);
  auto plugin =
      Plugin::open(options_.nccl_net.plugin, cuda ? Plugin::Init::kHere : Plugin::Init::kTriedFirst);
  if (!plugin) return tl::unexpected(plugin.error());
  auto devices = (*plugin)->devices();
  if (!devices) return tl::unexpected(devices.error());
  const Properties& properties = devices->front().properties;
  if (properties.unpacks() && !cuda && !host_pool) return no_cuda((*plugin)->name(), cuda.error());
  Opened opened{
      std::move(*plugin), {}, (properties.unpacks() || properties.takes_cuda()) && (cuda || host_pool)};
  if (opened.cuda && host_pool) {
    if (Status has = check_host_pool(*opened.plugin); !has) return tl::unexpected(has.error());
  }
  if (auto usable = take_usable(opened, std::move(*devices)); !usable) return tl::unexpected(usable.error());
  return opened;
}

/// Devices that memory can be registered with, and how long a message may be on all of them.
Status NetTransport::take_usable(Opened& opened, std::vector<Device> devices) const {
  Status last;
  const bool on_gpu = opened.cuda && !options_.nccl_net.host_pool;
  opened.chunk_bytes = options_.nccl_net.chunk_bytes != 0 ? options_.nccl_net.chunk_bytes
                       : on_gpu                           ? NcclNetOptions::kGpuChunkBytes
                                                          : NcclNetOptions::kHostChunkBytes;
  for (Device& device : devices) {
    if (opened.cuda) last = check_registers_cuda(*opened.plugin, device);
    if (!last) continue;
    const auto bytes = allowed_chunk(*opened.plugin, device, opened.chunk_bytes);
    if (!bytes) return tl::unexpected(bytes.error());
    opened.chunk_bytes = *bytes;
    opened.devices.push_back(std::move(device));
  }
  if (opened.devices.empty()) return last;
  if (opened.chunk_bytes >= NcclNetOptions::kLeastChunkBytes) return {};
  return fail(ErrorCode::kUnavailable,
              "{}: its environment allows messages of {} bytes, and {} are the least", opened.plugin->name(),
              opened.chunk_bytes, NcclNetOptions::kLeastChunkBytes);
}

bool NetTransport::asked() const {
  return !options_.nccl_net.plugin.empty() || names_this(options_.transports);
}

const Result<Opened>& NetTransport::opened() const {
  std::call_once(once_, [this] {
    opened_ = open();
    // Whoever asked for a plugin is not to find out from a bandwidth graph that there is none.
    if (!opened_ && asked()) {
      log(LogLevel::kWarning, "no transfer goes through a net plugin: {}", opened_.error().message);
    }
  });
  return opened_;
}

Status NetTransport::probe() const {
  if (!opened()) return tl::unexpected(opened().error());
  const std::string name = opened()->plugin->name();
  const bool peers_prove_themselves = !options_.key_file.empty() || !options_.tls_ca.empty();
  if (knows_handles_of(name) || peers_prove_themselves) return {};
  return fail(ErrorCode::kUnavailable,
              "{} is given bytes that a peer sends, and nothing is known of what it makes of them: "
              "peers must prove who they are (UCCL_P2P_KEY_FILE or UCCL_P2P_TLS_CA)",
              name);
}

Status NetTransport::check_place(const RegionInfo& region) {
  if (!opened()) return tl::unexpected(opened().error());
  const std::string name = opened()->plugin->name();
  if (!on_gpu()) {
    if (region.place.kind == MemoryKind::kHost) return {};
    return fail(ErrorCode::kUnavailable, "{} moves host memory only", name);
  }
  if (region.place.kind == MemoryKind::kHost) {
    return fail(ErrorCode::kUnavailable, "the devices of {} receive into CUDA memory only", name);
  }
  const auto allocation = cuda::allocation_of(region.base);
  if (!allocation) return tl::unexpected(allocation.error());
  const Status taken = gpus_.add_memory(region.place.device, !allocation->shareable);
  if (taken) return {};
  log(LogLevel::kWarning, "memory of CUDA device {} does not go through {}: {}", region.place.device, name,
      taken.error().message);
  return fail(ErrorCode::kUnavailable, "not through {}: {}", name, taken.error().message);
}

/// In an order that is the same on two machines that are made and used alike: NIC by NIC.
std::vector<Pair> NetTransport::pairs() const {
  std::vector<Pair> pairs;
  if (!opened()) return pairs;
  if (!on_gpu()) {
    for (const Device& device : opened()->devices) pairs.push_back({device, -1});
    return pairs;
  }
  for (const int gpu : gpus_.for_channels(cuda::current_device())) {
    for (Device& device : nearest(opened()->devices, place_of(gpu)))
      pairs.push_back({std::move(device), gpu});
  }
  std::ranges::sort(pairs, {}, [](const Pair& pair) { return std::pair(pair.device.index, pair.gpu); });
  return pairs;
}

std::vector<Rail> NetTransport::rails(const PeerPath& path) const {
  std::vector<Rail> rails;
  for (const Pair& pair : pairs()) rails.push_back({pair.name(), path.local_address});
  if (rails.empty()) rails.push_back({"none", path.local_address});
  return rails;
}

unsigned NetTransport::channels_per_rail(const Rail& rail) const {
  if (options_.nccl_net.channels != 0) return options_.nccl_net.channels;
  if (options_.streams != 0) return std::min(options_.streams, NcclNetOptions::kMostChannels);
  // GPUs that share a NIC share what it can do with.
  const std::vector<Pair> all = pairs();
  const auto own = std::ranges::find(all, rail.name, &Pair::name);
  const auto sharing = std::ranges::count_if(
      all, [&](const Pair& pair) { return own != all.end() && pair.device.index == own->device.index; });
  const int speed = own == all.end() ? 0 : std::max(0, own->device.properties.speed);
  const unsigned by_link = std::clamp(static_cast<unsigned>(speed / kFlowSpeed), kLeastFlows, kMostFlows);
  const unsigned for_nic = std::clamp(std::thread::hardware_concurrency() / 2, 1U, by_link);
  return std::max(1U, for_nic / std::max(1U, static_cast<unsigned>(sharing)));
}

/// What a channel takes at once. One runs as far ahead of a slow session as it can; many leave to each other
/// what they cannot send soon, so that they end a transfer together.
std::uint64_t NetTransport::most_bytes(const Rail& rail) const {
  constexpr std::uint64_t kHostShare = std::uint64_t{6} << 20;
  constexpr std::uint64_t kGpuShare = std::uint64_t{12} << 20;
  const std::uint64_t share = on_gpu() ? kGpuShare : kHostShare;
  const unsigned channels = channels_per_rail(rail);
  return channels == 1 ? std::numeric_limits<std::uint64_t>::max()
                       : std::max(share, kMostFlows * share / channels);
}

Result<std::unique_ptr<Channel>> NetTransport::open_channel(const ChannelSetup& setup) {
  if (!opened()) return tl::unexpected(opened().error());
  const std::vector<Pair> all = pairs();
  const auto pair = std::ranges::find(all, setup.rail.name, &Pair::name);
  if (pair == all.end()) {
    return fail(ErrorCode::kNotFound, "open a channel: {} has no device {}", opened()->plugin->name(),
                setup.rail.name);
  }
  if (auto good = check_accepts_of(*opened()->plugin, pair->gpu); !good) return tl::unexpected(good.error());
  auto unpacker = devices_->unpacker(pair->gpu);
  if (!unpacker) return tl::unexpected(unpacker.error());
  return NetChannel::open(setup, {.plugin = opened()->plugin,
                                  .device = pair->device,
                                  .devices = opened()->devices,
                                  .registrations = registrations_,
                                  .flow = {.pointer = opened()->cuda ? abi::kPointerCuda : abi::kPointerHost,
                                           .device = pair->gpu,
                                           .chunk_bytes = opened()->chunk_bytes,
                                           .window = options_.nccl_net.window,
                                           .gpu_blocks = options_.gpu_blocks},
                                  .unpacker = std::move(*unpacker),
                                  .most_bytes = most_bytes(setup.rail),
                                  .connect_timeout = options_.connect_timeout,
                                  .keepalive = options_.keepalive,
                                  .hung = std::max(options_.hung, options_.keepalive)});
}

}  // namespace

std::unique_ptr<Transport> make(const Options& options, const std::shared_ptr<device::Service>& devices) {
  return std::make_unique<NetTransport>(options, devices);
}

}  // namespace p2p::nccl_net
