// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "p2p/result.h"

namespace p2p::testing {

/// What a link does to its packets, each way.
struct LinkProfile {
  std::uint64_t rate_mbit = 500;
  std::uint64_t delay_us = 1000;
  std::uint64_t jitter_us = 0;      ///< up to so much more, in order
  std::uint64_t loss_ppm = 0;       ///< of a million packets
  std::uint64_t duplicate_ppm = 0;  ///< come twice
  std::uint64_t late_ppm = 0;       ///< come behind some that were sent after them
  std::uint64_t queue_us = 20'000;  ///< what waits for its turn takes so long at most; the rest is dropped

  /// Words like "delay_us=1000", with blanks between them; what is not named stays as in `before`.
  static Result<LinkProfile> parse(const std::string& words, const LinkProfile& before);
};

/// One way of a link: a queue that is emptied at some rate, then the delay. What becomes of the packets
/// follows from the seed: as long as the profile is the same, the same of the first, the second and so on.
/// Knows no clock. One thread.
class LinkWay {
 public:
  using Time = std::chrono::nanoseconds;  // from some moment on
  using Packet = std::vector<std::byte>;

  struct Counts {
    std::uint64_t taken = 0;
    std::uint64_t lost = 0;     ///< by chance
    std::uint64_t dropped = 0;  ///< for want of room
    std::uint64_t doubled = 0;
    std::uint64_t late = 0;
  };

  LinkWay(const LinkProfile& profile, std::uint64_t seed) : profile_(profile), chances_(seed) {}

  /// Counts for packets from now on.
  void change(const LinkProfile& profile) { profile_ = profile; }

  void take(Packet packet, Time now);

  /// The next packet that has arrived by `now`.
  std::optional<Packet> give(Time now);

  /// When the next one arrives; nothing: none is on its way.
  std::optional<Time> next() const;

  const Counts& counts() const { return counts_; }

 private:
  bool chance(std::uint64_t ppm);
  void arrive(Packet packet, Time at);

  LinkProfile profile_;
  std::mt19937_64 chances_;
  Time free_at_{0};  // the queue is empty
  Time last_{0};     // the latest arrival of one that is not late
  std::deque<std::pair<Time, Packet>> in_order_;
  std::multimap<Time, Packet> late_;
  Counts counts_;
};

}  // namespace p2p::testing
