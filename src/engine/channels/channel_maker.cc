// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/channel_maker.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "engine/channels/channel_place.h"
#include "engine/channels/session_link.h"
#include "wire/following.h"

namespace p2p::engine {
namespace {

std::shared_ptr<Lane> make_lane(const ChannelMaker::Setup& setup, const Capabilities& can) {
  const auto later = [&reactor = *setup.context->reactor](std::chrono::nanoseconds time,
                                                          std::function<void()> task) {
    reactor.post([&reactor, time, task = std::move(task)] { reactor.after(time, task); });
  };
  return std::make_shared<Lane>(Policy::of(can, setup.context->options), can.reopens ? setup.want : nullptr,
                                setup.bulk, later);
}

/// Has the lane look, on the reactor's thread, whether what a stalled channel has could go by another rail.
std::function<void()> leave_stalled(const std::shared_ptr<Lane>& lane, Reactor& reactor) {
  return [weak = std::weak_ptr(lane), &reactor] {
    reactor.post([weak] {
      if (const auto found = weak.lock()) found->runners().give_up_stalled();
    });
  };
}

Worker& least_loaded(const std::vector<std::shared_ptr<Worker>>& workers) {
  return **std::ranges::min_element(workers, {}, [](const auto& worker) { return worker->load(); });
}

}  // namespace

ChannelMaker::ChannelMaker(Setup setup)
    : setup_(std::move(setup)), lane_(make_lane(setup_, transport().capabilities())) {}

std::vector<ChannelKind> ChannelMaker::plan(std::size_t most) {
  most = std::min({most, kMaxChannels, std::size_t{options().max_channels}});
  std::vector<ChannelKind> kinds;
  const auto add = [&](const Rail& rail, ChannelKind kind) {
    if (kinds.size() == most) return;
    rails_.push_back(rail);
    kinds.push_back(kind);
  };
  const Capabilities can = transport().capabilities();
  const std::vector<Rail> rails = transport().rails(setup_.peer.path);
  if (rails.size() > 1) stalls_ = leave_stalled(lane_, *setup_.context->reactor);
  for (const Rail& rail : rails) {
    const unsigned channels = transport().channels_per_rail(rail);
    for (unsigned i = 0; i != channels; ++i) {
      add(rail, can.others_follow && i != 0 ? ChannelKind::kDeferred : ChannelKind::kFirst);
    }
  }
  if (!can.closes_idle) return kinds;  // surplus ones would stay
  std::vector<unsigned> surplus(rails.size());
  std::ranges::transform(rails, surplus.begin(),
                         [&](const Rail& rail) { return transport().spare_channels(rail); });
  const unsigned most_surplus = surplus.empty() ? 0 : std::ranges::max(surplus);
  for (unsigned i = 0; i != most_surplus; ++i) {
    for (std::size_t rail = 0; rail != rails.size(); ++rail) {
      if (i < surplus[rail]) add(rails[rail], ChannelKind::kSurplus);
    }
  }
  return kinds;
}

std::vector<ChannelKind> ChannelMaker::plan_for(const std::vector<Bytes>& offered) {
  std::vector<ChannelKind> kinds = plan(offered.size());
  const bool peer_has_surplus =
      transport().capabilities().closes_idle && std::ranges::any_of(offered, std::mem_fn(&Bytes::empty));
  // A peer that has no surplus ones gets as many as both open without being asked.
  while (!peer_has_surplus && !kinds.empty() && kinds.back() == ChannelKind::kSurplus) kinds.pop_back();
  for (std::size_t i = 0; i != kinds.size(); ++i) {
    if (peer_has_surplus && offered[i].empty()) kinds[i] = ChannelKind::kSurplus;
    if (kinds[i] == ChannelKind::kSurplus) continue;
    kinds[i] = offered[i] == wire::following() ? ChannelKind::kDeferred : ChannelKind::kFirst;
  }
  return kinds;
}

Result<std::shared_ptr<ChannelRunner>> ChannelMaker::make(std::uint32_t number) const {
  const Rail& rail = rails_[number % kMaxChannels];
  auto control = std::make_unique<SessionLink>(setup_.send, std::string(transport().name()), number);
  auto port = setup_.make_message_port();
  auto channel = setup_.context->transports()[setup_.transport].transport->open_channel(
      {.role = setup_.role,
       .rail = rail,
       .path = setup_.peer.path,
       .local_incarnation = setup_.context->regions->incarnation(),
       .peer_incarnation = setup_.peer.incarnation,
       .peer_identity = setup_.peer.identity,
       .secret = setup_.peer.secret,
       .encrypt = setup_.peer.encrypts,
       .control = control.get(),
       .messages = port.get(),
       .port = setup_.context->port,
       .transports = setup_.transports,
       .stalls = stalls_});
  if (!channel) return tl::unexpected(channel.error());
  ChannelRunner::Setup made{rail.name, std::move(control), std::move(*channel),
                            nullptr,   setup_.fence,       std::move(port)};
  made.transport = transport().name();
  made.number = number;
  made.report = [report = setup_.report, number](const Status& status) { report(number, status); };
  return std::make_shared<ChannelRunner>(least_loaded(setup_.context->workers), lane_, std::move(made));
}

void ChannelMaker::moved(const PeerPath& path) {
  if (!options().interfaces.empty()) return;
  const PeerPath before = std::exchange(setup_.peer.path, path);
  // A NIC that a transport finds by itself is the same by any path, and keeps its name.
  const auto was = transport().rails(before);
  const auto is = transport().rails(path);
  const bool by_path = was.size() == 1 && is.size() == 1 && was.front().name != is.front().name;
  for (Rail& rail : rails_) {
    if (rail.address != before.local_address) continue;
    rail.address = path.local_address;
    if (by_path) rail.name = is.front().name;
  }
}

}  // namespace p2p::engine
