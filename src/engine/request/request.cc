// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/request/request.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace p2p::engine {
namespace {

// What a rate allows at once: timers are not more exact, and shorter turns of a thread cost more than they
// move.
constexpr std::chrono::milliseconds kBurst{5};
constexpr std::uint64_t kLeastBurst = std::uint64_t{16} << 10;

// Of a timer that was late, so much is made up for.
constexpr std::chrono::milliseconds kCatchUp{20};

}  // namespace

bool Request::aborted() const {
  if (failed_.load(std::memory_order_acquire) || state()->cancelled()) return true;
  for (const auto& remote : list().remotes) {
    if (remote->state() != RemoteRegion::State::kReady) return true;
  }
  return false;
}

std::uint64_t Request::burst() const {
  const double bytes = static_cast<double>(post_.rate) * std::chrono::duration<double>(kBurst).count();
  return std::max(kLeastBurst, static_cast<std::uint64_t>(bytes));
}

std::chrono::steady_clock::time_point Request::spend(std::uint64_t bytes,
                                                     std::chrono::steady_clock::time_point now) {
  using Clock = std::chrono::steady_clock;
  const std::chrono::duration<double> time(static_cast<double>(bytes) / static_cast<double>(post_.rate));
  MutexLock lock(mutex_);
  if (paid_until_ == Clock::time_point{}) paid_until_ = now;
  // A clock's range ends before that of what 1 byte a second may ask for.
  paid_until_ = std::max(paid_until_, now - kCatchUp) +
                std::chrono::duration_cast<Clock::duration>(
                    std::min<std::chrono::duration<double>>(time, std::chrono::hours(24)));
  return paid_until_ - now > kBurst ? paid_until_ : now;
}

void Request::set_error(Error error) {
  MutexLock lock(mutex_);
  if (!error_) error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
}

void Request::set_dropped() {
  for (const auto& remote : list().remotes) {
    if (remote->state() == RemoteRegion::State::kFailed) return set_error(remote->error());
  }
  set_error({ErrorCode::kCancelled, fmt::format("transfer of {} bytes: cancelled", list().bytes)});
}

void Request::keep(std::shared_ptr<const SegmentList> reroute, std::size_t around) {
  MutexLock lock(mutex_);
  reroutes_.push_back({std::move(reroute), around});
  rerouted_.store(true, std::memory_order_relaxed);
}

// A part that went around more than one transport is taken from each but the last.
std::vector<TransportShare> Request::shares() const {
  std::vector<TransportShare> shares;
  if (!rerouted_.load(std::memory_order_relaxed)) return shares;
  const auto share = [&](std::size_t transport) -> std::uint64_t& {
    const auto found = std::ranges::find(shares, transport, &TransportShare::transport);
    return (found != shares.end() ? *found : shares.emplace_back(transport)).bytes;
  };
  for (const auto& portion : list().portions) share(portion.transport) += portion.bytes;
  MutexLock lock(mutex_);
  for (const auto& reroute : reroutes_) {
    share(reroute.around) -= reroute.list->bytes;
    for (const auto& portion : reroute.list->portions) share(portion.transport) += portion.bytes;
  }
  std::erase_if(shares, [](const TransportShare& one) { return one.bytes == 0; });
  return shares;
}

void Request::end() {
  Status status;
  if (failed_.load(std::memory_order_acquire)) {
    MutexLock lock(mutex_);
    status = tl::unexpected(*error_);
  }
  owner_->ended(*this, std::move(status));
}

WorkItem WorkItem::cut(const BatchLimits& limits) {
  WorkItem front{.request = request, .batch = cut_batch(batch, limits), .transport = transport};
  if (!empty()) request->open_.fetch_add(1, std::memory_order_relaxed);
  return front;
}

void WorkItem::land(PostUnlockActions& actions) {
  if (!request->verifies()) return close(actions);
  actions.call([item = std::move(*this)] { item.request->owner_->verify(item); });
}

void WorkItem::close(PostUnlockActions& actions) {
  if (request->open_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  actions.end(std::move(request));
}

void WorkItem::fail(Error error, PostUnlockActions& actions) {
  request->set_error(std::move(error));
  close(actions);
}

void WorkItem::drop(PostUnlockActions& actions) {
  request->set_dropped();
  close(actions);
}

void WorkItem::refuse(const Refusal& refusal, PostUnlockActions& actions) {
  if (!refusal.reroute) return fail(refusal.why, actions);
  actions.call([item = std::move(*this), why = refusal.why] { item.request->owner_->reroute(item, why); });
}

bool WorkItem::note_loss(Clock::time_point now, Clock::duration patience) {
  if (retries++ == 0) lost_at = now;
  return !worn_out() && (was_rerouted || retries == 1 || now - lost_at < patience);
}

void WorkItem::reroute_stuck(Error why, PostUnlockActions& actions) {
  actions.call(
      [item = std::move(*this), why = std::move(why)] { item.request->owner_->reroute_stuck(item, why); });
}

std::vector<WorkItem> WorkItem::spread(const std::shared_ptr<const SegmentList>& list) {
  request->keep(list, transport);
  request->open_.fetch_add(static_cast<std::uint32_t>(list->portions.size()) - 1, std::memory_order_relaxed);
  std::vector<WorkItem> items;
  for (const auto& portion : list->portions) {
    const Batch whole{.operation = batch.operation, .segments = portion.segments, .bytes = portion.bytes};
    items.push_back({.request = request,
                     .batch = whole,
                     .retries = retries,
                     .was_rerouted = was_rerouted,
                     .lost_at = lost_at,
                     .transport = portion.transport});
  }
  return items;
}

}  // namespace p2p::engine
