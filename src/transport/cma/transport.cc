// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <limits>

#include "base/error.h"
#include "transport/cma/channel.h"
#include "transport/cma/cma.h"

namespace p2p::cma {

namespace {

class CmaTransport : public Transport {
 public:
  std::string_view name() const override { return "cma"; }

  Capabilities capabilities() const override {
    return {.reach = Reach::kHost,
            .unaided = true,
            .needs_exported_key = true,
            .max_batch_bytes = kMaxBatchBytes,
            .max_batch_segments = kMaxBatchSegments};
  }

  Status probe() const override {
    if (const auto host = Host::here(); !host) return tl::unexpected(host.error());
    Proof proof;
    proof.token.fill(std::byte{0x5a});
    proof.token_address = reinterpret_cast<std::uint64_t>(proof.token.data());
    return check_access(::getpid(), proof);
  }

  bool carries(MemoryPlace local, MemoryPlace remote) const override {
    return local.kind == MemoryKind::kHost && remote.kind == MemoryKind::kHost;
  }

  std::vector<Rail> rails(const PeerPath&) const override { return {{.name = "memory", .address = {}}}; }

  // One core does not saturate memory: two workers copy in parallel.
  unsigned channels_per_rail(const Rail&) const override { return 2; }

  Result<std::shared_ptr<Registration>> register_memory(const RegionInfo& region) override {
    if (region.place.kind != MemoryKind::kHost) {
      return fail(ErrorCode::kUnavailable, "register {} bytes at {} with cma: it is not host memory",
                  region.size, static_cast<const void*>(region.base));
    }
    return std::make_shared<Registration>(region);
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
    return std::make_unique<RemoteKey>(region);
  }

  Result<std::unique_ptr<Channel>> open_channel(const ChannelSetup& setup) override {
    return CmaChannel::open(setup);
  }
};

}  // namespace

std::unique_ptr<Transport> make(const Options&) { return std::make_unique<CmaTransport>(); }

}  // namespace p2p::cma
