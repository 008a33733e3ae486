// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/rdma/channel.h"

#include <sys/epoll.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace p2p::rdma {
namespace {

// Looks at an empty queue before its descriptor is made to announce the next completion.
constexpr unsigned kTurnsUntilArmed = 256;

// Turns without completions between looks at what is rare: events, time.
constexpr unsigned kTurnsBetweenLooks = 16;

// Repairs after which no batch ended: more will not help.
constexpr unsigned kMostRepairs = 8;

// First byte of the address of a new queue pair, over the ControlLink: mine of the last generation is gone.
// Anything else is a CloseHandshake message.
constexpr std::uint8_t kAddressMessage = 1;

}  // namespace

Result<std::unique_ptr<Channel>> RdmaChannel::open(const ChannelSetup& setup, ChannelConfig config) {
  const Nic* nic = config.fabric->find(setup.rail.name);
  if (nic == nullptr) {
    return fail(ErrorCode::kNotFound, "open an rdma channel: no port '{}' is in use", setup.rail.name);
  }
  auto polls = socket::PollSet::open();
  if (!polls) return tl::unexpected(polls.error());
  std::unique_ptr<RdmaChannel> channel(new RdmaChannel(setup, std::move(config), *nic, std::move(*polls)));
  // It may come back before the peer's device loses patience.
  auto watch =
      DeviceWatch::start(channel->device_, nic->port, channel->config_.keepalive / 4, channel->polls_);
  if (!watch) return tl::unexpected(watch.error());
  channel->watch_.emplace(std::move(*watch));
  if (const Status opened = channel->open_link(); !opened) return tl::unexpected(opened.error());
  channel->deadlines_.set_port(channel->watch_->port_deadline());
  channel->deadlines_.wait_until(Clock::now() + channel->config_.connect_timeout);
  return channel;
}

RdmaChannel::RdmaChannel(const ChannelSetup& setup, ChannelConfig config, const Nic& nic,
                         socket::PollSet polls)
    : setup_(setup),
      config_(std::move(config)),
      nic_(nic),
      device_(config_.fabric->devices()[nic.device]),
      paths_{nic_, *device_, config_.options, config_.keepalive, setup_.role},
      description_(nic.port.name()),
      close_handshake_(setup.control),
      polls_(std::move(polls)) {}

RdmaChannel::~RdmaChannel() {
  drop_link();
  close_handshake_.send("the peer closed the channel");
}

Status RdmaChannel::open_link() {
  auto link = Link::open(*config_.fabric, nic_);
  if (!link) return tl::unexpected(link.error());
  link_ = std::move(*link);
  return polls_.add(link_->queue->fd(), EPOLLIN);
}

std::vector<std::byte> RdmaChannel::address() const {
  return link_ ? paths_.own_address(*link_, generation_).serialize(setup_.secret) : std::vector<std::byte>();
}

Status RdmaChannel::connect(std::span<const std::byte> peer_address) {
  const auto peer = Address::parse(peer_address, setup_.secret);
  if (!peer) return tl::unexpected(peer.error());
  if (phase_ != Phase::kAddressing || peer->generation != 0 || peer->role == setup_.role) {
    return fail(ErrorCode::kProtocol, "connect with rdma: an address that was not due");
  }
  return connect_pair(*peer);
}

Status RdmaChannel::connect_pair(const Address& peer) {
  const auto path = paths_.choose(*link_, peer);
  if (!path) return tl::unexpected(path.error());
  description_ = path->description;
  if (const Status connected = link_->pair->connect(path->path); !connected) {
    return fail(connected.error().code, "{}: {}", description_, connected.error().message);
  }
  requests_.set_ends({.local_device = nic_.device,
                      .remote_device = peer.device,
                      .scratch = config_.fabric->scratch(),
                      .scratch_key = config_.fabric->scratch_key(nic_.device)});
  close_handshake_.connected();
  phase_ = Phase::kGreeting;
  // The acceptor answers: one that receives nothing may have a peer that is not connected yet.
  return setup_.role == Role::kConnector ? greet() : Status();
}

Status RdmaChannel::greet() { return link_->pair->post_word(Link::kGreeting, generation_); }

void RdmaChannel::become_ready() {
  phase_ = Phase::kReady;
  was_ready_ = true;
  deadlines_.probe_at(Clock::now() + config_.keepalive / 2);
}

ChannelState RdmaChannel::state() const {
  if (phase_ == Phase::kFailed) return ChannelState::kFailed;
  return was_ready_ ? ChannelState::kReady : ChannelState::kConnecting;
}

bool RdmaChannel::busy() const {
  if (requests_.busy()) return true;
  const bool awaits = phase_ == Phase::kGreeting || (phase_ == Phase::kReady && requests_.outstanding() != 0);
  return awaits && link_ && !link_->armed;
}

bool RdmaChannel::post(const Batch& batch) {
  if (phase_ != Phase::kReady || !requests_.accept(batch)) return false;
  idle_turns_ = 0;
  if (const Status posted = requests_.pump(*link_); !posted) {
    lose(posted.error());
  }
  return true;
}

bool RdmaChannel::progress(std::vector<Completion>& completions) {
  bool moved = link_ && poll_queue();
  if (phase_ == Phase::kReady) {
    if (const Status posted = requests_.pump(*link_); !posted) {
      lose(posted.error());
    }
  }
  idle_turns_ = moved ? 0 : idle_turns_ + 1;
  if (!moved && (phase_ != Phase::kReady || idle_turns_ % kTurnsBetweenLooks == 0)) moved = look_around();
  if (!moved && idle_turns_ >= kTurnsUntilArmed) moved = arm();
  if (requests_.take(completions)) {
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
  heard_at_ = Clock::now();
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
    requests_.done_until(completion.id);
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

void RdmaChannel::take_failure(const verbs::WorkCompletion& completion) {
  const auto told = [&](std::string_view what) {
    return fmt::format("{}: {} ({})", description_, what, completion.text);
  };
  const bool own = (completion.id & (Link::kGreeting | Link::kReceive)) != 0;
  // Completions come in order: whatever was posted earlier is done.
  if (!own) requests_.done_until(completion.id - 1);
  switch (completion.outcome) {
    case verbs::Outcome::kRemoteAccess:
      requests_.fail(completion.id, {ErrorCode::kPermissionDenied,
                                     told("the peer's device refused: the key is wrong or dead, or the range "
                                          "is outside of what it was given for")});
      return repair();
    case verbs::Outcome::kLocalFault:
      requests_.fail(completion.id,
                     {ErrorCode::kSystem, told("this side's memory is not what was registered")});
      return repair();
    case verbs::Outcome::kFlushed:
      // The peer's fault, or an event of the pair's: it says so over the session.
      return repair();
    case verbs::Outcome::kRetryExceeded: return lose(ErrorCode::kPeerGone, told("the peer does not answer"));
    default: return lose(ErrorCode::kPeerGone, told("the connection failed"));
  }
}

void RdmaChannel::drop_link() {
  if (!link_) return;
  polls_.remove(link_->queue->fd());
  link_.reset();
  idle_turns_ = 0;
}

// Makes a new queue pair and offers it; the peer does the same.
void RdmaChannel::repair() {
  if (!was_ready_ || ++repairs_ > kMostRepairs) {
    return lose(ErrorCode::kPeerGone, fmt::format("{}: the connection failed again and again", description_));
  }
  drop_link();
  requests_.rewind();
  ++generation_;
  phase_ = Phase::kAddressing;
  deadlines_.wait_until(Clock::now() + config_.keepalive);
  if (const Status opened = open_link(); !opened) return lose(opened.error());
  Bytes message;
  ByteWriter writer(message);
  writer.put(kAddressMessage);
  writer.put(ByteView(paths_.own_address(*link_, generation_).serialize(setup_.secret)));
  setup_.control->send(message);
}

Status RdmaChannel::on_control(std::span<const std::byte> message) {
  if (phase_ == Phase::kFailed) return {};
  if (!message.empty() && message.front() == std::byte{kAddressMessage}) {
    return on_address(message.subspan(1));
  }
  const auto why = close_handshake_.receive(message);
  if (!why) return tl::unexpected(why.error());
  drop_link();
  requests_.rewind();
  // A channel that closes has its own reason.
  if (phase_ != Phase::kClosing) error_ = {ErrorCode::kPeerGone, fmt::format("{}: {}", description_, *why)};
  close_handshake_.send("the peer's end was lost first");
  finish();
  return {};
}

Status RdmaChannel::on_address(std::span<const std::byte> bytes) {
  const auto peer = Address::parse(bytes, setup_.secret);
  if (!peer) return tl::unexpected(peer.error());
  if (peer->role == setup_.role || peer->generation == 0 || peer->generation > generation_ + 1) {
    return fail(ErrorCode::kProtocol, "{}: an address of generation {} that was not due", description_,
                peer->generation);
  }
  if (phase_ == Phase::kClosing || peer->generation < generation_) return {};
  if (peer->generation == generation_ + 1) repair();
  if (phase_ != Phase::kAddressing || peer->generation != generation_) return {};
  if (const Status paired = connect_pair(*peer); !paired) lose(ErrorCode::kPeerGone, paired.error().message);
  return {};
}

bool RdmaChannel::look_around() {
  if (phase_ == Phase::kFailed) return false;
  const Phase before = phase_;
  for (const verbs::Event& event : watch_->take()) handle(event);
  deadlines_.set_port(watch_->port_deadline());
  if (link_ && link_->armed && link_->queue->take_event()) link_->armed = false;
  look_at_clock();
  return phase_ != before;
}

void RdmaChannel::handle(const verbs::Event& event) {
  if (event.kind == verbs::EventKind::kDeviceGone) {
    lose(ErrorCode::kPeerGone, fmt::format("{}: {}", description_, event.text));
  } else if (link_ && event.queue_pair == link_->pair->number() && phase_ != Phase::kAddressing) {
    repair();
  }
}

void RdmaChannel::look_at_clock() {
  const Clock::time_point now = Clock::now();
  if (deadlines_.waited(now)) {
    if (phase_ == Phase::kClosing) return finish();
    return lose(was_ready_ ? ErrorCode::kPeerGone : ErrorCode::kTimedOut,
                fmt::format("{}: the peer did not connect in time", description_));
  }
  if (deadlines_.port_is_down(now)) {
    return lose(ErrorCode::kPeerGone, fmt::format("{}: the port went down", description_));
  }
  if (phase_ != Phase::kReady || !deadlines_.probes(now)) return;
  // While requests are under way they show whether the peer is there.
  deadlines_.probe_at(now + config_.keepalive / 2);
  if (requests_.outstanding() != 0) return;
  if (const Status asked = requests_.probe(*link_); !asked) lose(asked.error());
}

// Batches may be sent again over another path once nothing of this one can arrive any more: when the peer's
// queue pair is gone too, or the peer itself.
void RdmaChannel::lose(ErrorCode code, const std::string& why) {
  if (phase_ == Phase::kFailed || phase_ == Phase::kClosing) return;
  log(LogLevel::kInfo, "an rdma channel is lost: {}", why);
  error_ = {code, why};
  drop_link();
  requests_.rewind();
  close_handshake_.send(why);
  if (!was_ready_ || requests_.empty()) return finish();
  phase_ = Phase::kClosing;
  deadlines_.wait_until(Clock::now() + config_.keepalive / 3);
}

void RdmaChannel::lose(const Error& error) {
  lose(ErrorCode::kPeerGone, fmt::format("{}: {}", description_, error.message));
}

void RdmaChannel::finish() {
  phase_ = Phase::kFailed;
  requests_.fail_all({ErrorCode::kPeerGone, error_.message});
  watch_->stop();
  deadlines_.clear();
}

}  // namespace p2p::rdma
