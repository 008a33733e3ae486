// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/rail_balancer.h"

#include <algorithm>
#include <cmath>

namespace p2p::engine {
namespace {

// Less is not worth a look: threads are held up for as long.
constexpr double kUnimportant = 0.005;  // seconds

// An item should take no longer than that, as far as items of its size say how fast a channel is.
constexpr double kPieceTime = 0.1;  // seconds
constexpr double kLeastPiece = RateEstimator::kLeastBytes;
constexpr double kMostPiece = 256U << 10;

// Until it has moved what is under way and so many bytes more. One that is late may be as late again.
double end_of(const RunnerLoad& channel, std::uint64_t more) {
  const double flying = static_cast<double>(channel.flying) / channel.rate - channel.silence.count();
  return std::abs(flying) + static_cast<double>(more) / channel.rate;
}

}  // namespace

std::uint64_t item_for(double rate) {
  return static_cast<std::uint64_t>(std::clamp(rate * kPieceTime, kLeastPiece, kMostPiece));
}

std::uint64_t rail_item_for(double rate, std::uint64_t most) {
  const double bytes = rate == 0 ? kMostPiece : std::max(rate * kPieceTime, kLeastPiece);
  return std::min(most, static_cast<std::uint64_t>(bytes));
}

// Short items say nothing of a channel's speed, however many of them are under way.
bool probes(const RateEstimator& channel, std::uint64_t next_item) {
  return channel.rate() == 0 && next_item >= RateEstimator::kLeastBytes &&
         static_cast<double>(channel.flying()) >= kMostPiece;
}

Least least_queued(std::span<const RunnerLoad> channels, const Asking& asking) {
  Least least{.queued = 0, .best = asking.channel};
  const RunnerLoad& self = channels[asking.channel];
  if (self.rate == 0) return least;
  const double end = end_of(self, asking.batch) - kUnimportant;
  double first = end;
  double rate = 0;
  double flying = 0;
  for (std::size_t i = 0; i != channels.size(); ++i) {
    const RunnerLoad& channel = channels[i];
    if (channel.rate == 0) continue;
    rate += channel.rate;
    flying += static_cast<double>(channel.flying);
    if (const double other = end_of(channel, asking.batch); other < first) {
      first = other;
      least.best = i;
    }
  }
  if (least.best == asking.channel) return least;
  // All of it, shared out by speed, takes as long as this channel would.
  const double queued = end * rate - flying;
  if (queued > 0) least.queued = static_cast<std::uint64_t>(queued);
  return least;
}

}  // namespace p2p::engine
