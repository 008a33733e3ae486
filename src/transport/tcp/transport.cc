// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "device/lifetime.h"
#include "device/service.h"
#include "drivers/cuda/device.h"
#include "drivers/socket/interfaces.h"
#include "transport/tcp/channel.h"
#include "transport/tcp/tcp.h"

namespace p2p::tcp {
namespace {

// What one flow of copies carries on current machines.
constexpr unsigned kStreamSpeed = 60'000;  // Mb/s
// Between two GPUs of one host 16 streams and as many workers were the best on 32 cores (45 GB/s; 8 streams
// 25, 24 streams 35), 8 on 16 cores.
constexpr unsigned kMaxStreams = 16;
// Over a long path on which each has a small share, for which it needs neither a core nor a GPU.
constexpr unsigned kMostOverLongPath = 24;
constexpr std::size_t kLeastBatchBytes = std::size_t{64} << 10;

static_assert(kStagedBytes <= device::Service::kSlotBytes && kMaxRanges <= device::Service::kSlotPieces &&
              kStagingShare.all_slots() <= device::Service::kStreamSlots);

std::uint64_t max_batch_bytes(const Options& options) {
  const std::uint64_t most = cuda::available() ? kStagedBytes : kMaxPayloadBytes;
  return std::clamp<std::uint64_t>(options.batch_bytes, kLeastBatchBytes, most);
}

class TcpTransport final : public Transport {
 public:
  TcpTransport(const Options& options, std::shared_ptr<device::StagingPool> staging)
      : options_(options),
        max_batch_bytes_(max_batch_bytes(options)),
        registrations_(std::make_shared<RegistrationTable>()),
        staging_(std::move(staging)) {}

  std::string_view name() const override { return "tcp"; }

  Capabilities capabilities() const override {
    return {.reach = Reach::kNetwork,
            .encrypts = true,
            .reopens = true,
            .closes_idle = true,
            .others_follow = true,
            .max_batch_bytes = max_batch_bytes_,
            .max_batch_segments = kMaxRanges};
  }

  Status probe() const override;

  bool carries(MemoryPlace /*local*/, MemoryPlace /*remote*/) const override { return true; }

  std::vector<Rail> rails(const PeerPath& path) const override;
  unsigned channels_per_rail(const Rail& rail) const override;

  /// Whoever names a number gets that one.
  unsigned spare_channels(const Rail& rail) const override {
    return options_.streams != 0 ? 0 : kMostOverLongPath - channels_per_rail(rail);
  }

  Result<std::shared_ptr<Registration>> register_memory(const RegionInfo& region) override {
    auto registration = std::make_shared<device::WithLifetime<Registration>>(region);
    registrations_->add(registration);
    if (region.place.kind == MemoryKind::kCuda) staging_->add_device(region.place.device);
    return registration;
  }

  void revoke_memory(const Registration& registration) override { registrations_->revoke(registration); }

  Result<std::unique_ptr<RemoteKey>> import_region(const RegionInfo& region,
                                                   std::span<const std::byte> /*exported*/) override {
    return std::make_unique<RemoteKey>(region);
  }

  Result<std::unique_ptr<Channel>> open_channel(const ChannelSetup& setup) override {
    return StreamChannel::open(setup, {.registrations = registrations_,
                                       .connect_timeout = options_.connect_timeout,
                                       .keepalive = options_.keepalive,
                                       .zerocopy_bytes = options_.zerocopy_bytes,
                                       .staging = staging_,
                                       .stages = expects_to_stage(setup)});
  }

 private:
  const Options options_;
  const std::uint64_t max_batch_bytes_;
  std::shared_ptr<RegistrationTable> registrations_;
  const std::shared_ptr<device::StagingPool> staging_;
};

Status TcpTransport::probe() const {
  const Result<std::vector<socket::Interface>> found = socket::interfaces();
  if (!found) return tl::unexpected(found.error());
  for (const std::string& wanted : options_.interfaces) {
    const bool exists = std::any_of(found->begin(), found->end(), [&](const socket::Interface& candidate) {
      return candidate.name == wanted || candidate.address.text() == wanted;
    });
    if (!exists)
      return fail(ErrorCode::kUnavailable, "no interface that is up has name or address '{}'", wanted);
  }
  return {};
}

std::vector<Rail> TcpTransport::rails(const PeerPath& path) const {
  const Result<std::vector<socket::Interface>> found = socket::interfaces();
  const Result<socket::Address> local = socket::Address::parse(path.local_address, 0);
  std::vector<Rail> rails;
  if (found && local) {
    for (const std::string& wanted : options_.interfaces) {
      const auto match = std::find_if(found->begin(), found->end(), [&](const socket::Interface& candidate) {
        return candidate.address.text() == wanted ||
               (candidate.name == wanted && candidate.address.family() == local->family());
      });
      if (match != found->end()) rails.push_back({match->name, match->address.text()});
    }
  }
  if (!rails.empty()) return rails;

  std::string name = path.local_address;
  if (found && local) {
    const auto match = std::find_if(found->begin(), found->end(), [&](const socket::Interface& candidate) {
      return candidate.address.same_host(*local);
    });
    if (match != found->end()) name = match->name;
  }
  return {{name, path.local_address}};
}

unsigned TcpTransport::channels_per_rail(const Rail& rail) const {
  if (options_.streams != 0) return std::min(options_.streams, 64U);
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  const unsigned speed = socket::link_speed(rail.name);
  const unsigned by_link = speed == 0 ? kMaxStreams : (speed + kStreamSpeed - 1) / kStreamSpeed;
  return std::clamp(std::min(cores / 2, by_link), 1U, kMaxStreams);
}

}  // namespace

std::unique_ptr<Transport> make(const Options& options, const std::shared_ptr<device::Service>& devices) {
  return std::make_unique<TcpTransport>(options, devices->staging());
}

}  // namespace p2p::tcp
