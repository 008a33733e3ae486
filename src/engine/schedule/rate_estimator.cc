// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/rate_estimator.h"

#include "transport/channel.h"

namespace p2p::engine {
namespace {

// Long enough for a thread's time slice not to matter.
constexpr std::chrono::milliseconds kSpan{20};
// What has come and gone within less than a span counts if it was so much.
constexpr std::uint64_t kEnough = std::uint64_t{256} << 10;
// Until a rate is known it is as much as keeps a fast channel busy until it is.
constexpr std::uint64_t kLeastHeld = std::uint64_t{1} << 20;
// A path may have changed while nothing went over it.
constexpr std::chrono::seconds kForget{2};

}  // namespace

void RateEstimator::set_path(std::chrono::nanoseconds round_trip, std::chrono::duration<double> most_held) {
  round_trip_ = round_trip;
  if (round_trip < kLongPath) most_held_ = most_held;
}

bool RateEstimator::holds_enough() const {
  const std::uint64_t flying = this->flying();
  return flying >= kLeastHeld && most_held_.count() != 0 &&
         static_cast<double>(flying) >= rate() * most_held_.count();
}

void RateEstimator::sent(std::uint64_t bytes) {
  items_.store(items_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  flying_.store(flying_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  if (bytes < kLeastBytes || from_ != Clock::time_point{}) return;
  from_ = Clock::now();
  heard_at_.store(from_, std::memory_order_relaxed);
}

void RateEstimator::ended(std::uint64_t bytes) {
  items_.store(items_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  flying_.store(flying_.load(std::memory_order_relaxed) - bytes, std::memory_order_relaxed);
  if (from_ != Clock::time_point{}) arrived_ += bytes;
}

void RateEstimator::update() {
  if (arrived_ == 0) return;
  const auto now = Clock::now();
  const std::chrono::duration<double> span = now - from_;
  if (span >= kSpan || (!has_inflight() && arrived_ >= kEnough)) {
    const double rate = static_cast<double>(arrived_) / span.count();
    const double before = rate_.load(std::memory_order_relaxed);
    rate_.store(before == 0 ? rate : (before + rate) / 2, std::memory_order_relaxed);
    taken_at_.store(now, std::memory_order_relaxed);
    from_ = now;
    arrived_ = 0;
  }
  if (!has_inflight()) return rest();
  heard_at_.store(now, std::memory_order_relaxed);
}

void RateEstimator::rest() {
  from_ = {};
  arrived_ = 0;
  heard_at_.store({}, std::memory_order_relaxed);
}

void RateEstimator::clear() {
  items_.store(0, std::memory_order_relaxed);
  flying_.store(0, std::memory_order_relaxed);
  rest();
}

RunnerLoad RateEstimator::standing(Clock::time_point now) const {
  const Clock::time_point heard_at = heard_at_.load(std::memory_order_relaxed);
  const bool known = has_inflight() || now - taken_at_.load(std::memory_order_relaxed) < kForget;
  return {.flying = flying(),
          .rate = known ? rate_.load(std::memory_order_relaxed) : 0,
          .silence = heard_at == Clock::time_point{} ? Clock::duration{} : now - heard_at};
}

}  // namespace p2p::engine
