// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/rdma/path_chooser.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace p2p::rdma {
namespace {

constexpr unsigned kMostReads = 16;

// The longest wait of which `retries` more fit into half the keepalive time.
unsigned timeout_for(std::chrono::milliseconds keepalive, unsigned retries) {
  const auto most = std::chrono::nanoseconds(keepalive).count() / 2 / (retries + 1) / 4096;
  return std::clamp(static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(most))), 11U, 31U) - 1;
}

std::string_view name_of(verbs::GidKind kind) {
  switch (kind) {
    case verbs::GidKind::kInfiniBand: return "InfiniBand";
    case verbs::GidKind::kRoceV1: return "RoCE v1";
    case verbs::GidKind::kRoceV2: return "RoCE v2";
  }
  return "RDMA";
}

}  // namespace

unsigned PathChooser::reads_in() const { return std::clamp(device.limits().reads_in, 1U, kMostReads); }

Address PathChooser::own_address(const Link& link, std::uint32_t generation) const {
  return {.role = role,
          .generation = generation,
          .device = static_cast<std::uint8_t>(nic.device),
          .ethernet = nic.port.ethernet,
          .mtu = static_cast<std::uint16_t>(nic.port.mtu),
          .lid = nic.port.lid,
          .reads = static_cast<std::uint8_t>(reads_in()),
          .number = link.pair->number(),
          .sequence = link.sequence,
          .gids = nic.port.gids};
}

Result<ChosenPath> PathChooser::choose(const Link& link, const Address& peer) const {
  if (peer.ethernet != nic.port.ethernet) {
    return fail(ErrorCode::kUnavailable, "connect {}: one side is InfiniBand, the other RoCE",
                nic.port.name());
  }
  const bool connects = role == Role::kConnector;
  const std::vector<verbs::Gid>& own = nic.port.gids;
  const auto chosen = connects ? choose_gids(own, peer.gids) : choose_gids(peer.gids, own);
  if (!chosen) return fail(chosen.error().code, "{}: {}", nic.port.name(), chosen.error().message);
  const verbs::Gid& here = connects ? *chosen->connector : *chosen->acceptor;
  const verbs::Gid& there = connects ? *chosen->acceptor : *chosen->connector;
  const unsigned mtu = std::min<unsigned>(nic.port.mtu, peer.mtu);
  const int distance = numa_distance(nic.numa_node);
  ChosenPath made;
  made.description = fmt::format("{} {} {} -> {}, {:g} Gb/s, MTU {}, NUMA distance {}", nic.port.name(),
                                 name_of(here.kind), here.text(), there.text(), nic.port.gigabits, mtu,
                                 distance == 0 ? "unknown" : fmt::to_string(distance));
  made.path =
      verbs::Path{.peer_number = peer.number,
                  .peer_sequence = peer.sequence,
                  .sequence = link.sequence,
                  .peer_gid = there.bytes,
                  .peer_lid = peer.lid,
                  .global = nic.port.ethernet || options.gid_index >= 0,
                  .gid_index = here.index,
                  .mtu = mtu,
                  .reads_out = std::clamp<unsigned>(peer.reads, 1, std::max(device.limits().reads_out, 1U)),
                  .reads_in = reads_in(),
                  .timeout = options.timeout != 0 ? options.timeout : timeout_for(keepalive, options.retries),
                  .retries = options.retries,
                  .service_level = options.service_level,
                  .traffic_class = options.traffic_class};
  return made;
}

}  // namespace p2p::rdma
