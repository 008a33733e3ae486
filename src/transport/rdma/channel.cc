// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/rdma/channel.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/error.h"

namespace p2p::rdma {
namespace {

// Looks at an empty queue before its descriptor is made to announce the next completion.
constexpr unsigned kTurnsUntilArmed = 256;

// Turns without completions between looks at what is rare: events, time.
constexpr unsigned kTurnsBetweenLooks = 16;

constexpr unsigned kMostReads = 16;

// The longest wait of which `retries` more fit into half the keepalive time.
unsigned timeout_for(std::chrono::milliseconds keepalive, unsigned retries) {
  const auto most = std::chrono::nanoseconds(keepalive).count() / 2 / (retries + 1) / 4096;
  return std::clamp(static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(most))), 11U, 31U) - 1;
}

std::string_view name_of(verbs::GidKind kind) {
  switch (kind) {
    case verbs::GidKind::kInfiniBand: return "InfiniBand";
    case verbs::GidKind::kRoceV1: return "RoCE v1";
    case verbs::GidKind::kRoceV2: return "RoCE v2";
  }
  return "RDMA";
}

}  // namespace

Result<std::unique_ptr<Channel>> RdmaChannel::open(const ChannelSetup& setup, ChannelConfig config) {
  const Nic* nic = config.fabric->find(setup.rail.name);
  if (nic == nullptr) {
    return fail(ErrorCode::kNotFound, "open an rdma channel: no port '{}' is in use", setup.rail.name);
  }
  auto polls = socket::PollSet::open();
  if (!polls) return tl::unexpected(polls.error());
  std::unique_ptr<RdmaChannel> channel(new RdmaChannel(setup, std::move(config), *nic, std::move(*polls)));
  auto events = channel->device_->watch();
  if (!events) return tl::unexpected(events.error());
  channel->events_ = std::move(*events);
  // Asked only now, so that no event in between is missed.
  const auto port = channel->device_->port(nic->port.number);
  if (!port) return tl::unexpected(port.error());
  if (!port->active) {
    return fail(ErrorCode::kUnavailable, "open an rdma channel: port {} is down", nic->port.name());
  }
  for (const int fd : {channel->device_->event_fd(), channel->events_->fd()}) {
    if (const Status added = channel->polls_.add(fd, EPOLLIN); !added) return tl::unexpected(added.error());
  }
  if (const Status opened = channel->open_link(); !opened) return tl::unexpected(opened.error());
  channel->deadline_ = Clock::now() + channel->config_.connect_timeout;
  channel->set_alarm();
  return channel;
}

RdmaChannel::RdmaChannel(const ChannelSetup& setup, ChannelConfig config, const Nic& nic,
                         socket::PollSet polls)
    : setup_(setup),
      config_(std::move(config)),
      nic_(nic),
      device_(config_.fabric->devices()[nic.device]),
      description_(nic.port.name()),
      polls_(std::move(polls)) {}

RdmaChannel::~RdmaChannel() {
  drop_link();
  say_gone("the peer closed the channel");
}

Status RdmaChannel::open_link() {
  auto link = Link::open(*config_.fabric, nic_);
  if (!link) return tl::unexpected(link.error());
  link_ = std::move(*link);
  return polls_.add(link_->queue->fd(), EPOLLIN);
}

Address RdmaChannel::own_address() const {
  const unsigned reads = std::clamp(device_->limits().reads_in, 1U, kMostReads);
  return {.role = setup_.role,
          .generation = generation_,
          .device = static_cast<std::uint8_t>(nic_.device),
          .ethernet = nic_.port.ethernet,
          .mtu = static_cast<std::uint16_t>(nic_.port.mtu),
          .lid = nic_.port.lid,
          .reads = static_cast<std::uint8_t>(reads),
          .number = link_->pair->number(),
          .sequence = link_->sequence,
          .gids = nic_.port.gids};
}

std::vector<std::byte> RdmaChannel::address() const {
  return link_ ? own_address().serialize(setup_.secret) : std::vector<std::byte>();
}

Status RdmaChannel::connect(std::span<const std::byte> peer_address) {
  const auto peer = Address::parse(peer_address, setup_.secret);
  if (!peer) return tl::unexpected(peer.error());
  if (phase_ != Phase::kAddressing || peer->generation != 0 || peer->role == setup_.role) {
    return fail(ErrorCode::kProtocol, "connect with rdma: an address that was not due");
  }
  return meet(*peer);
}

Result<verbs::Path> RdmaChannel::path_to(const Address& peer) {
  if (peer.ethernet != nic_.port.ethernet) {
    return fail(ErrorCode::kUnavailable, "connect {}: one side is InfiniBand, the other RoCE", description_);
  }
  const bool connects = setup_.role == Role::kConnector;
  const std::vector<verbs::Gid>& own = nic_.port.gids;
  const auto chosen = connects ? choose_gids(own, peer.gids) : choose_gids(peer.gids, own);
  if (!chosen) return fail(chosen.error().code, "{}: {}", description_, chosen.error().message);
  const verbs::Gid& here = connects ? *chosen->connector : *chosen->acceptor;
  const verbs::Gid& there = connects ? *chosen->acceptor : *chosen->connector;
  const unsigned mtu = std::min<unsigned>(nic_.port.mtu, peer.mtu);
  const int distance = numa_distance(nic_.numa_node);
  description_ = fmt::format("{} {} {} -> {}, {:g} Gb/s, MTU {}, NUMA distance {}", nic_.port.name(),
                             name_of(here.kind), here.text(), there.text(), nic_.port.gigabits, mtu,
                             distance == 0 ? "unknown" : fmt::to_string(distance));
  const RdmaOptions& options = config_.options;
  return verbs::Path{
      .peer_number = peer.number,
      .peer_sequence = peer.sequence,
      .sequence = link_->sequence,
      .peer_gid = there.bytes,
      .peer_lid = peer.lid,
      .global = nic_.port.ethernet || options.gid_index >= 0,
      .gid_index = here.index,
      .mtu = mtu,
      .reads_out = std::clamp<unsigned>(peer.reads, 1, std::max(device_->limits().reads_out, 1U)),
      .reads_in = std::clamp(device_->limits().reads_in, 1U, kMostReads),
      .timeout = options.timeout != 0 ? options.timeout : timeout_for(config_.keepalive, options.retries),
      .retries = options.retries,
      .service_level = options.service_level,
      .traffic_class = options.traffic_class};
}

Status RdmaChannel::meet(const Address& peer) {
  const auto path = path_to(peer);
  if (!path) return tl::unexpected(path.error());
  if (const Status connected = link_->pair->connect(*path); !connected) {
    return fail(connected.error().code, "{}: {}", description_, connected.error().message);
  }
  sender_.set_ends({.local_device = nic_.device,
                    .remote_device = peer.device,
                    .scratch = config_.fabric->scratch(),
                    .scratch_key = config_.fabric->scratch_key(nic_.device)});
  met_ = true;
  phase_ = Phase::kGreeting;
  // The acceptor answers: one that hears nothing may have a peer that is not connected yet.
  return setup_.role == Role::kConnector ? greet() : Status();
}

Status RdmaChannel::greet() { return link_->pair->post_word(Link::kGreeting, generation_); }

void RdmaChannel::become_ready() {
  phase_ = Phase::kReady;
  was_ready_ = true;
  deadline_ = kNever;
  probe_at_ = Clock::now() + config_.keepalive / 2;
  set_alarm();
}

ChannelState RdmaChannel::state() const {
  if (phase_ == Phase::kFailed) return ChannelState::kFailed;
  return was_ready_ ? ChannelState::kReady : ChannelState::kConnecting;
}

bool RdmaChannel::busy() const {
  if (sender_.busy()) return true;
  const bool awaits = phase_ == Phase::kGreeting || (phase_ == Phase::kReady && sender_.outstanding() != 0);
  return awaits && link_ && !link_->armed;
}

bool RdmaChannel::post(const Batch& batch) {
  if (phase_ != Phase::kReady || !sender_.accept(batch)) return false;
  idle_turns_ = 0;
  if (const Status posted = sender_.pump(*link_); !posted) {
    lose(posted.error());
  }
  return true;
}

bool RdmaChannel::progress(std::vector<Completion>& completions) {
  bool moved = link_ && poll_queue();
  if (phase_ == Phase::kReady) {
    if (const Status posted = sender_.pump(*link_); !posted) {
      lose(posted.error());
    }
  }
  idle_turns_ = moved ? 0 : idle_turns_ + 1;
  if (!moved && (phase_ != Phase::kReady || idle_turns_ % kTurnsBetweenLooks == 0)) moved = look_around();
  if (!moved && idle_turns_ >= kTurnsUntilArmed) moved = arm();
  if (sender_.take(completions)) {
    moved = true;
    repairs_ = 0;
  }
  return moved;
}

// True if something came, or the link broke.
bool RdmaChannel::poll_queue() {
  bool moved = false;
  std::array<verbs::WorkCompletion, 32> completions;
  while (link_) {
    const auto count = link_->queue->poll(completions);
    if (!count) {
      lose(count.error());
      return true;
    }
    for (const verbs::WorkCompletion& completion : std::span(completions).first(*count)) {
      if (!take(completion)) return true;
    }
    moved = moved || *count != 0;
    if (*count < completions.size()) break;
  }
  if (moved && link_ && link_->armed && link_->queue->take_event()) link_->armed = false;
  return moved;
}

// False: the link is no more.
bool RdmaChannel::take(const verbs::WorkCompletion& completion) {
  if (completion.outcome != verbs::Outcome::kDone) {
    take_failure(completion);
    return false;
  }
  if (completion.id == Link::kGreeting) {
    if (setup_.role == Role::kAcceptor) become_ready();
  } else if ((completion.id & Link::kReceive) != 0) {
    if (phase_ != Phase::kGreeting || completion.immediate != generation_) return true;
    if (setup_.role == Role::kConnector) {
      become_ready();
    } else if (const Status greeted = greet(); !greeted) {
      lose(greeted.error());
      return false;
    }
  } else {
    sender_.done_until(completion.id);
  }
  return true;
}

bool RdmaChannel::arm() {
  if (!link_ || link_->armed) return false;
  link_->queue->take_event();
  if (const Status armed = link_->queue->arm(); !armed) {
    lose(armed.error());
    return true;
  }
  link_->armed = true;
  return poll_queue();
}

}  // namespace p2p::rdma
