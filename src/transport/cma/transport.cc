// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/mutex.h"
#include "device/lifetime.h"
#include "transport/cma/channel.h"
#include "transport/cma/cma.h"

namespace p2p::cma {

namespace {

// One thread copies far less than memory gives, and an endpoint has no more workers than this unless told to.
constexpr unsigned kLeastChannels = 2;
constexpr unsigned kMostChannels = 8;
// Short enough that the next one is brought while this one is copied.
constexpr std::uint64_t kStandbyBytes = std::uint64_t{256} << 10;
// Threads that copy to or from the same pages wait for each other: with five of them on 1 MiB each took 90 us
// for the 128 KiB that one alone copies in 12.
constexpr std::uint64_t kThreadBytes = std::uint64_t{512} << 10;

device::StagingPool::Limits staging_limits(const Options& options) {
  return {.slot_bytes = kMaxBatchBytes,
          .slots_per_stream = 2 * DevicePath::kSlots,
          .slots = options.gpu_staging_bytes / kMaxBatchBytes,
          .copier = device::StagingPool::copier_limits(options, kMaxBatchSegments, DevicePath::lists(),
                                                       kStandbyBytes)};
}

class CmaTransport : public Transport {
 public:
  explicit CmaTransport(const Options& options)
      : staging_(std::make_shared<device::StagingPool>(staging_limits(options))) {}

  std::string_view name() const override { return "cma"; }

  Capabilities capabilities() const override {
    return {.reach = Reach::kHost,
            .needs_exported_key = true,
            .guard = Guard::kNobody,
            .thread_bytes = kThreadBytes,
            .max_batch_bytes = kMaxBatchBytes,
            .max_batch_segments = kMaxBatchSegments};
  }

  Status probe() const override {
    if (const auto host = Host::here(); !host) return tl::unexpected(host.error());
    MemoryProof proof;
    proof.token.fill(std::byte{0x5a});
    proof.token_address = reinterpret_cast<std::uint64_t>(proof.token.data());
    return check_access(::getpid(), proof);
  }

  bool carries(MemoryPlace /*local*/, MemoryPlace remote) const override {
    return remote.kind == MemoryKind::kHost;
  }

  std::vector<Rail> rails(const PeerPath&) const override { return {{.name = "memory", .address = {}}}; }

  unsigned channels_per_rail(const Rail&) const override {
    return std::clamp(std::thread::hardware_concurrency() / 2, kLeastChannels, kMostChannels);
  }

  Result<std::shared_ptr<Registration>> register_memory(const RegionInfo& region) override {
    if (region.place.kind == MemoryKind::kCuda) {
      const MutexLock lock(mutex_);
      devices_.insert(region.place.device);
      if (copies_) staging_->add_device(region.place.device);
    }
    return std::make_shared<device::WithLifetime<Registration>>(region);
  }

  // Peers reach memory through the system, which knows no registrations: they are told to stop instead.
  void revoke_memory(const Registration& registration) override { registration.revoke(); }

  Result<std::unique_ptr<RemoteKey>> import_region(const RegionInfo& region,
                                                   std::span<const std::byte> exported) override {
    const auto base = reinterpret_cast<std::uint64_t>(region.base);
    if (region.base == nullptr || region.size > std::numeric_limits<std::uint64_t>::max() - base ||
        !exported.empty() || region.place.kind != MemoryKind::kHost) {
      return fail(ErrorCode::kProtocol,
                  "import region {} of {} bytes at {:#x} with cma: not a host memory range",
                  static_cast<std::uint32_t>(region.id), region.size, base);
    }
    // Only now is it likely that device memory is staged: many peers have nothing but device memory.
    const MutexLock lock(mutex_);
    copies_ = true;
    for (const int device : devices_) staging_->add_device(device);
    return std::make_unique<RemoteKey>(region);
  }

  Result<std::unique_ptr<Channel>> open_channel(const ChannelSetup& setup) override {
    return CmaChannel::open(setup, staging_);
  }

 private:
  const std::shared_ptr<device::StagingPool> staging_;
  Mutex mutex_;
  std::set<int> devices_ P2P_GUARDED_BY(mutex_);  // that have memory registered here
  bool copies_ P2P_GUARDED_BY(mutex_) = false;    // host memory of a peer is known
};

}  // namespace

std::unique_ptr<Transport> make(const Options& options, const std::shared_ptr<device::Service>& /*devices*/) {
  return std::make_unique<CmaTransport>(options);
}

}  // namespace p2p::cma
