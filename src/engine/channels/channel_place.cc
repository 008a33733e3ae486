// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/channel_place.h"

#include <algorithm>

namespace p2p::engine {
namespace {

/// So many may be at their end.
constexpr std::size_t kMostRetired = 4;

auto with_number(const ChannelPlace::Runners& runners, std::uint32_t number) {
  return std::ranges::find_if(runners, [number](const auto& runner) { return runner->number() == number; });
}

}  // namespace

ChannelPlace::Runner ChannelPlace::find(std::uint32_t number) const {
  if (number == number_ && runner_) return runner_;
  const auto retired = with_number(retired_, number);
  return retired != retired_.end() ? *retired : nullptr;
}

Bytes ChannelPlace::offer(Runner runner) {
  runner_ = std::move(runner);
  on(ChannelEvent::kOffer);
  return runner_->address();
}

Status ChannelPlace::connect(const Bytes& address) {
  if (Status connected = runner_->connect(address); !connected) return connected;
  on(ChannelEvent::kConnect);
  runner_->start();
  return {};
}

void ChannelPlace::fail() {
  drop();
  on(ChannelEvent::kFail);
}

void ChannelPlace::discard() {
  if (runner_) runner_->mute();
  drop();
}

void ChannelPlace::drop() {
  if (runner_) ending_.push_back(std::exchange(runner_, nullptr));
}

void ChannelPlace::retire() {
  if (runner_) retired_.push_back(std::exchange(runner_, nullptr));
  if (retired_.size() > kMostRetired) end_retired(retired_.front()->number());
}

void ChannelPlace::end_retired(std::uint32_t number) {
  const auto retired = with_number(retired_, number);
  if (retired == retired_.end()) return;
  ending_.push_back(*retired);
  retired_.erase(retired);
}

void ChannelPlace::renew(std::uint32_t number) {
  retire();
  number_ = number;
}

void ChannelPlace::clear() {
  add_to(ending_);
  runner_ = nullptr;
  retired_.clear();
}

void ChannelPlace::add_to(Runners& runners) const {
  if (runner_) runners.push_back(runner_);
  runners.insert(runners.end(), retired_.begin(), retired_.end());
}

}  // namespace p2p::engine
