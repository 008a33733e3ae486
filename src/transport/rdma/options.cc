// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/option_text.h"
#include "transport/rdma/rdma.h"

namespace p2p::rdma {
namespace {

using namespace option_text;
using Text = std::string_view;

constexpr OptionVariable kVariables[] = {
    {"UCCL_P2P_RDMA_DEVICES",
     "RDMA devices (`mlx5_0`) or ports (`mlx5_0:1`) to use, comma-separated. Empty: all active ports; where "
     "the process uses a GPU, the ones nearest to it.",
     [](Text text, Options& o) { return read_list(text, o.rdma.devices); },
     [](const Options& o) { return show_list(o.rdma.devices); }},
    {"UCCL_P2P_RDMA_GID_INDEX",
     "Index of the GID that names a port. `auto`: the one that suits the peer's best.",
     [](Text text, Options& o) {
       if (text == "auto") return o.rdma.gid_index = -1, Status{};
       return read_number(text, {0, 255}, o.rdma.gid_index);
     },
     [](const Options& o) { return o.rdma.gid_index < 0 ? "auto" : std::to_string(o.rdma.gid_index); }},
    {"UCCL_P2P_RDMA_MTU", "Path MTU of RDMA in bytes: 256, 512, 1024, 2048 or 4096. 0: what both ports have.",
     [](Text text, Options& o) {
       const Status status = read_number(text, {0, 4096}, o.rdma.mtu);
       const bool fits = o.rdma.mtu == 0 || (o.rdma.mtu >= 256 && std::has_single_bit(o.rdma.mtu));
       return status && !fits ? fail(ErrorCode::kInvalidArgument, "no MTU that RDMA has") : status;
     },
     [](const Options& o) { return std::to_string(o.rdma.mtu); }},
    {"UCCL_P2P_RDMA_QUEUE_PAIRS", "RDMA queue pairs for each connection and port.",
     [](Text text, Options& o) { return read_number(text, {1, 32}, o.rdma.queue_pairs); },
     [](const Options& o) { return std::to_string(o.rdma.queue_pairs); }},
    {"UCCL_P2P_RDMA_TIMEOUT",
     "RDMA waits 4.096 us times two to this for an answer before it sends again. 0: from the keepalive time.",
     [](Text text, Options& o) { return read_number(text, {0, 31}, o.rdma.timeout); },
     [](const Options& o) { return std::to_string(o.rdma.timeout); }},
    {"UCCL_P2P_RDMA_RETRIES",
     "How often RDMA sends a packet again before the path counts as dead; for software RoCE 7 is without "
     "end.",
     [](Text text, Options& o) { return read_number(text, {0, 7}, o.rdma.retries); },
     [](const Options& o) { return std::to_string(o.rdma.retries); }},
    {"UCCL_P2P_RDMA_SERVICE_LEVEL", "InfiniBand service level, or RoCE priority.",
     [](Text text, Options& o) { return read_number(text, {0, 15}, o.rdma.service_level); },
     [](const Options& o) { return std::to_string(o.rdma.service_level); }},
    {"UCCL_P2P_RDMA_TRAFFIC_CLASS", "Traffic class of RDMA packets; with RoCE v2 four times the DSCP.",
     [](Text text, Options& o) { return read_number(text, {0, 255}, o.rdma.traffic_class); },
     [](const Options& o) { return std::to_string(o.rdma.traffic_class); }},
};

}  // namespace

std::span<const OptionVariable> variables() { return kVariables; }

}  // namespace p2p::rdma
