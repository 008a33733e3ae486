// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "engine/channels/reconnect_policy.h"
#include "engine/schedule/channel_runner.h"
#include "transport/transport.h"

namespace p2p::engine {

/// More channels than this between two processes is a mistake or an attack.
inline constexpr std::size_t kMaxChannels = 64;

/// Where one channel of a set is, one after the other. Of a connector that means to open it later, or not
/// yet, the acceptor knows.
struct ChannelEntry {
  Rail rail;
  std::shared_ptr<ChannelRunner> runner;                         ///< null: lost, or not open yet
  std::uint32_t past = 0;                                        ///< channels that were here before
  std::map<std::uint32_t, std::shared_ptr<ChannelRunner>> last;  ///< of those the ones that end by themselves
  bool ready = false;
  bool met = false;       ///< connected to its twin
  bool was_lost = false;  ///< and is not back
  bool follows = false;   ///< opened once the first ones serve
  bool later = false;     ///< and was not yet
  bool extra = false;     ///< not open from the beginning
  bool spare = false;     ///< nor now
  ReconnectPolicy attempts;
  std::optional<std::chrono::steady_clock::time_point> due;  ///< to try again; or to give up this try
};

}  // namespace p2p::engine
