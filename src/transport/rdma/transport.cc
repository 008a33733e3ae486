// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/rdma/transport.h"

#include <algorithm>

#include "base/error.h"
#include "drivers/cuda/device.h"
#include "transport/rdma/channel.h"
#include "transport/rdma/rdma.h"
#include "transport/rdma/region.h"

namespace p2p::rdma {
namespace {

// Pieces of one batch; the requests follow each other through the window.
constexpr std::size_t kMaxBatchSegments = 1024;
constexpr std::uint64_t kMaxBatchBytes = std::uint64_t{1} << 20;

}  // namespace

RdmaTransport::RdmaTransport(const Options& options, const verbs::Library* library)
    : options_(options), library_(library) {}

Capabilities RdmaTransport::capabilities() const {
  return {.reach = Reach::kNetwork,
          .needs_exported_key = true,
          .guard = Guard::kDevice,
          .reopens = true,
          .max_batch_bytes = kMaxBatchBytes,
          .max_batch_segments = kMaxBatchSegments};
}

const Result<std::shared_ptr<const Fabric>>& RdmaTransport::fabric() const {
  std::call_once(opened_, [this] {
    Result<const verbs::Library*> library = library_;
    if (library_ == nullptr) library = verbs::load_library();
    if (library) {
      fabric_ = Fabric::open(**library, options_.rdma);
    } else {
      fabric_ = tl::unexpected(library.error());
    }
  });
  return fabric_;
}

Status RdmaTransport::probe() const {
  if (const auto& opened = fabric(); !opened) return tl::unexpected(opened.error());
  return {};
}

// Whether a NIC takes a GPU's memory shows when it is registered: `register_memory` says why not.
bool RdmaTransport::carries(MemoryPlace local, MemoryPlace /*remote*/) const {
  return local.kind == MemoryKind::kHost || cuda::available().has_value();
}

std::vector<Rail> RdmaTransport::rails(const PeerPath& /*path*/) const {
  std::vector<Rail> rails;
  if (!fabric()) return rails;
  for (const Nic* nic : (*fabric())->nics()) {
    rails.push_back({nic->port.name(), nic->port.gids.empty() ? "" : nic->port.gids.back().text()});
  }
  return rails;
}

unsigned RdmaTransport::channels_per_rail(const Rail& /*rail*/) const {
  return std::max(options_.rdma.queue_pairs, 1U);
}

Result<std::shared_ptr<Registration>> RdmaTransport::register_memory(const RegionInfo& region) {
  const auto& opened = fabric();
  if (!opened) return tl::unexpected(opened.error());
  return RdmaRegistration::add((*opened)->devices(), region);
}

void RdmaTransport::revoke_memory(const Registration& registration) { registration.revoke(); }

Result<std::unique_ptr<RemoteKey>> RdmaTransport::import_region(const RegionInfo& region,
                                                                std::span<const std::byte> exported) {
  return RdmaKey::parse(region, exported);
}

Result<std::unique_ptr<Channel>> RdmaTransport::open_channel(const ChannelSetup& setup) {
  const auto& opened = fabric();
  if (!opened) return tl::unexpected(opened.error());
  return RdmaChannel::open(setup, {.fabric = *opened,
                                   .options = options_.rdma,
                                   .connect_timeout = options_.connect_timeout,
                                   .keepalive = options_.keepalive});
}

std::unique_ptr<Transport> make(const Options& options, const std::shared_ptr<device::Service>& /*devices*/) {
  return std::make_unique<RdmaTransport>(options);
}

}  // namespace p2p::rdma
