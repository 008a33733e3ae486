// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/policy.h"

#include <algorithm>
#include <limits>

namespace p2p::engine {

Policy Policy::spread(BatchLimits limits, std::chrono::nanoseconds spin) {
  constexpr std::uint64_t kStartBytes = std::uint64_t{64} << 10;
  constexpr std::uint64_t kLeastShare = std::uint64_t{128} << 10;
  constexpr std::uint64_t kTurnBytes = std::uint64_t{4} << 20;  // more than leaves in one
  return {.limits = limits,
          .spin = spin,
          .start_bytes = kStartBytes,
          .start_block_bytes = kStartBytes,
          .least_share = std::min(limits.bytes, kLeastShare),
          .turn_bytes = kTurnBytes,
          .assist_bytes = std::uint64_t{256} << 10,
          .watch = spin};
}

// A copy says nothing until it has ended, and takes 250 us on devices that were asleep. To leave it to a
// worker meanwhile, who would poll in the caller's place, costs 100 us of waking each other.
Policy Policy::by_caller(BatchLimits limits, std::chrono::nanoseconds spin) {
  constexpr std::chrono::nanoseconds kCopy = std::chrono::milliseconds(1);
  return {.limits = limits,
          .spin = spin.count() == 0 ? spin : std::max(spin, kCopy),
          .start_bytes = std::uint64_t{4} << 20,  // longer lists are the workers' to write
          .start_block_bytes = limits.bytes,
          .least_share = limits.bytes,
          .takes_turns = false,
          .assist_bytes = std::numeric_limits<std::uint64_t>::max(),
          .stays = true,
          .callers_turn = std::chrono::microseconds(30),
          .watch = std::chrono::milliseconds(10)};
}

std::uint64_t Policy::share(std::uint64_t left, std::size_t channels) const {
  return std::clamp(2 * left / std::max<std::size_t>(channels, 1), least_share, limits.bytes);
}

// Two batches, so that one moves while the end of the other is told, and what the path holds. The rate is
// that of such queues: a share more lets it grow.
std::uint64_t Policy::short_batch(const RateEstimator& channel, bool owed) const {
  constexpr std::chrono::duration<double> kBatchTime = std::chrono::microseconds(25);
  constexpr double kLeastBatch = 128U << 10;
  constexpr double kGrowth = 1.25;
  const double batch = std::max(kLeastBatch, channel.rate() * kBatchTime.count());
  const double path = kGrowth * channel.rate() * std::chrono::duration<double>(channel.round_trip()).count();
  const double flying = static_cast<double>(channel.flying());
  if (!owed && channel.has_inflight() && flying > batch + path) return 0;
  return static_cast<std::uint64_t>(batch);
}

Policy Policy::of(const Capabilities& capabilities, const Options& options) {
  BatchLimits limits{capabilities.max_batch_bytes, capabilities.max_batch_segments};
  const bool callers = capabilities.scheduling == Scheduling::kByCaller;
  if (!callers) limits.bytes = std::min<std::uint64_t>(limits.bytes, options.batch_bytes);
  Policy policy = callers ? by_caller(limits, options.spin) : spread(limits, options.spin);
  if (!callers) policy.thread_bytes = capabilities.thread_bytes;
  policy.patience = options.keepalive;
  if (capabilities.closes_idle) policy.most_held = std::chrono::milliseconds(100);
  return policy;
}

}  // namespace p2p::engine
