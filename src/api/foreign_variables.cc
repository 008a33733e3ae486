// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "api/foreign_variables.h"

#include <string>
#include <string_view>

#include "base/option_text.h"
#include "p2p/host_port.h"

namespace p2p {
namespace {

using namespace option_text;
using Text = std::string_view;

/// The host of NCCL's "host:port" or "[host]:port".
Status read_comm_id(std::string_view text, Options& options) {
  if (const auto place = HostPort::parse(text)) options.announce_near = place->host;
  return {};
}

Status read_announced(std::string_view text, Options& options) {
  return options.announce_interfaces = text, Status{};
}

std::string show_nothing(const Options& /*options*/) { return {}; }

// Other programs have the same names: what is no number says nothing.
Status read_local_rank(std::string_view text, Options& options) {
  std::uint16_t rank = 0;
  if (read_number(text, {0, 65534}, rank)) options.local_rank = rank;
  return {};
}

constexpr OptionVariable kForeign[] = {
    {"NCCL_COMM_ID", "Only says which network is preferred for the address to announce.", read_comm_id,
     show_nothing},
    {"NCCL_SOCKET_IFNAME",
     "Interfaces to announce an address of: beginnings of names, comma-separated; `=` in front: whole names; "
     "`^`: all but these. It is an error if there is none.",
     read_announced, show_nothing},
    {"UCCL_SOCKET_IFNAME", "The same, and wins over it.", read_announced, show_nothing},
    {"UCCL_TCPX_OOB_PORT", "As UCCL_P2P_PORT.",
     [](Text text, Options& o) { return read_number(text, {0, 65535}, o.port); }, show_nothing},
    {"UCCL_TCP_OOB_PORT", "As UCCL_P2P_PORT, and wins over UCCL_TCPX_OOB_PORT.",
     [](Text text, Options& o) { return read_number(text, {0, 65535}, o.port); }, show_nothing},
    {"SLURM_LOCALID", "Number of this process on this host, for `+rank` in UCCL_P2P_PORT.", read_local_rank,
     show_nothing},
    {"MPI_LOCALRANKID", "The same, and wins over it.", read_local_rank, show_nothing},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "The same, and wins over both.", read_local_rank, show_nothing},
    {"LOCAL_RANK", "The same, as torchrun sets it, and wins over all.", read_local_rank, show_nothing},
};

}  // namespace

std::span<const OptionVariable> foreign_variables() { return kForeign; }

}  // namespace p2p
