// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "engine/schedule/rate_estimator.h"

/// Pure functions on rails of unlike speeds: who takes the last of the work, so that all end at one time.
namespace p2p::engine {

/// What a channel asks for.
struct Asking {
  std::size_t channel = 0;  ///< its place in the list
  std::uint64_t batch = 0;  ///< bytes that it would get
};

/// So many bytes must wait for channels for `channel` to take its batch; 0: it should, however few wait. With
/// fewer it would be at that batch when all others are idle, and `best` would end it sooner.
struct Least {
  std::uint64_t queued = 0;
  std::size_t best = 0;  ///< its place in the list
};

/// Bytes of a batch for a channel of that rate, where there are many on a long path; a rate of 0 is not
/// known.
std::uint64_t item_for(double rate);

/// The same, of `most` at most, where there are several rails: a slow one is not at one batch for seconds.
std::uint64_t rail_item_for(double rate, std::uint64_t most);

/// A channel whose rate is not known has enough to find it out: it may be of a rail that has become slow.
bool probes(const RateEstimator& channel, std::uint64_t next_item);

Least least_queued(std::span<const RunnerLoad> channels, const Asking& asking);

}  // namespace p2p::engine
