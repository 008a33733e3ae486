// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "device/lifetime.h"
#include "device/service.h"
#include "transport/cma/channel.h"
#include "transport/cma/cma.h"

namespace p2p::cma {

namespace {

// One thread copies far less than memory gives, and an endpoint has no more workers than this unless told to.
constexpr unsigned kLeastChannels = 2;
constexpr unsigned kMostChannels = 8;
// Threads that copy to or from the same pages wait for each other: with five of them on 1 MiB each took 90 us
// for the 128 KiB that one alone copies in 12.
constexpr std::uint64_t kThreadBytes = std::uint64_t{512} << 10;

static_assert(kMaxBatchBytes <= device::Service::kSlotBytes && kMaxBatchBytes <= SharedSlots::kSlotBytes &&
              kMaxBatchSegments <= device::Service::kSlotPieces &&
              kStagingShare.all_slots() <= device::Service::kStreamSlots);

class CmaRegistration : public device::WithLifetime<Registration> {
 public:
  using WithLifetime::WithLifetime;
  std::vector<std::byte> export_key() const override { return export_shared(info()); }
};

class CmaTransport : public Transport {
 public:
  CmaTransport(std::shared_ptr<device::StagingPool> staging, const std::string& folder)
      : staging_(std::move(staging)), place_(socket::Place::at(folder)) {}

  std::string_view name() const override { return "cma"; }

  Capabilities capabilities() const override {
    return {.reach = Reach::kHost,
            .needs_exported_key = true,
            .guard = Guard::kNobody,
            .others_follow = true,
            .thread_bytes = kThreadBytes,
            .max_batch_bytes = kMaxBatchBytes,
            .max_batch_segments = kMaxBatchSegments};
  }

  Status probe() const override {
    if (!place_) return tl::unexpected(place_.error());
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
    auto registration = std::make_shared<CmaRegistration>(region);
    if (region.place.kind == MemoryKind::kCuda) {
      staging_->add_device(region.place.device);
    } else {
      regions_->add(registration);
    }
    return registration;
  }

  // What peers ask for is refused from now on. They also reach memory through the system, which knows no
  // registrations: they are told to stop.
  void revoke_memory(const Registration& registration) override { regions_->revoke(registration); }

  Result<std::unique_ptr<RemoteKey>> import_region(const RegionInfo& region,
                                                   std::span<const std::byte> exported) override {
    const auto base = reinterpret_cast<std::uint64_t>(region.base);
    if (region.base == nullptr || region.size > std::numeric_limits<std::uint64_t>::max() - base ||
        region.place.kind != MemoryKind::kHost) {
      return fail(ErrorCode::kProtocol,
                  "import region {} of {} bytes at {:#x} with cma: not a host memory range",
                  static_cast<std::uint32_t>(region.id), region.size, base);
    }
    // Only now is it likely that device memory is staged: many peers have nothing but device memory.
    const MutexLock lock(mutex_);
    copies_ = true;
    for (const auto& each : unexpected_) {
      if (const auto stream = each.lock()) stream->expect();
    }
    unexpected_.clear();
    return PeerRegion::import(region, exported);
  }

  std::string describe(const RemoteKey& remote) const override {
    const auto* const region = dynamic_cast<const PeerRegion*>(&remote);
    return region == nullptr || !region->mapping() ? "" : region->mapping()->describe();
  }

  Result<std::unique_ptr<Channel>> open_channel(const ChannelSetup& setup) override {
    const MutexLock lock(mutex_);
    auto stream = std::make_shared<device::Staging>(staging_, kStagingShare, copies_);
    std::erase_if(unexpected_, [](const auto& each) { return each.expired(); });
    if (!copies_) unexpected_.push_back(stream);
    return CmaChannel::open(setup, std::move(stream), PeerAccess(regions_, setup.peer_identity),
                            place_.value_or(socket::Place()));
  }

 private:
  const std::shared_ptr<device::StagingPool> staging_;
  const Result<socket::Place> place_;
  const std::shared_ptr<RegistrationTable> regions_ =
      std::make_shared<RegistrationTable>();  // of host memory
  Mutex mutex_;
  bool copies_ P2P_GUARDED_BY(mutex_) = false;  // host memory of a peer is known
  std::vector<std::weak_ptr<device::Staging>> unexpected_ P2P_GUARDED_BY(mutex_);  // of channels, until it is
};

}  // namespace

std::unique_ptr<Transport> make(const Options& options, const std::shared_ptr<device::Service>& devices) {
  return std::make_unique<CmaTransport>(devices->staging(), options.socket_dir);
}

}  // namespace p2p::cma
