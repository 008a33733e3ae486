// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "engine/channels/channel_plan.h"
#include "engine/schedule/channel_runner.h"

namespace p2p::engine {

/// What the channels of one transport move, from look to look: `begin`, `look_at` each, `tell`. Not
/// thread-safe.
class PathMeter {
 public:
  void begin();
  void look_at(ChannelRunner& runner, bool ready);

  /// All but `unused_since`; `busy` says that much is under way.
  void tell(ChannelTraffic& traffic) const;

 private:
  struct Used {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
  };

  // What stands still says nothing of the path: it is as it was before.
  bool fills_path() const { return moving_ == 0 ? filled_ : 2 * full_ > moving_; }

  std::map<std::uint32_t, Used> before_, now_;                    // by the channel's number
  std::map<std::string, std::chrono::microseconds> round_trips_;  // of each rail the least
  std::uint64_t moved_ = 0;                                       // bytes, as far as was looked at
  std::uint64_t flying_ = 0;
  std::size_t moving_ = 0;  // channels
  std::size_t bound_ = 0;   // of those that wait for the path
  std::size_t full_ = 0;    // of those that fill it
  bool filled_ = false;     // at the look before
};

}  // namespace p2p::engine
