// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>

#include "base/option_text.h"
#include "transport/nccl_net/nccl_net.h"

namespace p2p::nccl_net {
namespace {

using namespace option_text;
using Text = std::string_view;

constexpr Bounds kChunk{NcclNetOptions::kLeastChunkBytes, NcclNetOptions::kMostChunkBytes};

constexpr OptionVariable kVariables[] = {
    {"UCCL_P2P_NCCL_NET_PLUGIN",
     "NCCL net plugin for `nccl_net`: a path, or a name by NCCL's rules. Empty: libnccl-net.so, if that is "
     "GPUDirect-TCPX.",
     [](Text text, Options& o) { return o.nccl_net.plugin = text, Status{}; },
     [](const Options& o) { return o.nccl_net.plugin; }},
    {"UCCL_P2P_NCCL_NET_HOST_POOL",
     "1: the plugin's receive pool lies in host memory, and host memory goes through it; for software "
     "plugins that imitate GPU devices.",
     [](Text text, Options& o) { return read_flag(text, o.nccl_net.host_pool); },
     [](const Options& o) { return show_flag(o.nccl_net.host_pool); }},
    {"UCCL_P2P_NCCL_NET_CHUNK",
     "Bytes of one message of a net plugin's comm at most, 4K to 4M, never more than UCCL_P2P_BATCH_BYTES. "
     "0: 1M for GPU memory, else 512K. The smaller number of the two sides counts.",
     [](Text text, Options& o) {
       return text == "0" ? (o.nccl_net.chunk_bytes = 0, Status{})
                          : read_size(text, kChunk, o.nccl_net.chunk_bytes);
     },
     [](const Options& o) { return show_size(o.nccl_net.chunk_bytes); }},
    {"UCCL_P2P_NCCL_NET_WINDOW",
     "Requests under way on one comm of a net plugin, 1 to 16. Each takes a chunk of staging memory.",
     [](Text text, Options& o) {
       return read_number(text, {1, NcclNetOptions::kMostWindow}, o.nccl_net.window);
     },
     [](const Options& o) { return std::to_string(o.nccl_net.window); }},
    {"UCCL_P2P_NCCL_NET_CHANNELS",
     "Comms in each direction for each NIC and GPU of a net plugin, at most 16. 0: UCCL_P2P_STREAMS if that "
     "is set, else chosen from cores and the speed that the plugin tells. The smaller number of the two "
     "sides counts.",
     [](Text text, Options& o) {
       return read_number(text, {0, NcclNetOptions::kMostChannels}, o.nccl_net.channels);
     },
     [](const Options& o) { return std::to_string(o.nccl_net.channels); }},
};

}  // namespace

std::span<const OptionVariable> variables() { return kVariables; }

}  // namespace p2p::nccl_net
