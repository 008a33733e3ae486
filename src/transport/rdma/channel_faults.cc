// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a channel does when something goes wrong: repair it with the peer, or give it up.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "transport/rdma/channel.h"

namespace p2p::rdma {
namespace {

// Repairs after which no batch ended: more will not help.
constexpr unsigned kMostRepairs = 8;

// First byte of what goes over the ControlLink.
enum class Message : std::uint8_t {
  kAddress = 1,  // of a new queue pair: mine of the last generation is gone
  kGone = 2,     // mine is gone, and no other comes; a sentence follows
};

constexpr std::size_t kMostText = 512;

}  // namespace

void RdmaChannel::take_failure(const verbs::WorkCompletion& completion) {
  const auto told = [&](std::string_view what) {
    return fmt::format("{}: {} ({})", description_, what, completion.text);
  };
  const bool own = (completion.id & (Link::kGreeting | Link::kReceive)) != 0;
  // Completions come in order: whatever was posted earlier is done.
  if (!own) sender_.done_until(completion.id - 1);
  switch (completion.outcome) {
    case verbs::Outcome::kRemoteAccess:
      sender_.fail(completion.id, {ErrorCode::kPermissionDenied,
                                   told("the peer's device refused: the key is wrong or dead, or the range "
                                        "is outside of what it was given for")});
      return repair();
    case verbs::Outcome::kLocalFault:
      sender_.fail(completion.id,
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
  sender_.rewind();
  ++generation_;
  phase_ = Phase::kAddressing;
  deadline_ = Clock::now() + config_.keepalive;
  probe_at_ = kNever;
  set_alarm();
  if (const Status opened = open_link(); !opened) return lose(opened.error());
  Bytes message;
  ByteWriter writer(message);
  writer.put(static_cast<std::uint8_t>(Message::kAddress));
  writer.put(ByteView(own_address().serialize(setup_.secret)));
  setup_.control->send(message);
}

Status RdmaChannel::on_control(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto kind = Message{reader.get<std::uint8_t>()};
  const ByteView rest = reader.take(reader.left());
  if (phase_ == Phase::kFailed) return {};
  if (kind == Message::kGone && rest.size() <= kMostText) {
    drop_link();
    sender_.rewind();
    if (error_.message.empty()) error_ = {ErrorCode::kPeerGone, description_ + ": " + to_string(rest)};
    say_gone("the peer's end was lost first");
    finish();
    return {};
  }
  if (kind == Message::kAddress) return on_address(rest);
  return fail(ErrorCode::kProtocol, "{}: a control message of kind {} and {} bytes", description_,
              static_cast<unsigned>(kind), rest.size());
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
  if (const Status met = meet(*peer); !met) lose(ErrorCode::kPeerGone, met.error().message);
  return {};
}

bool RdmaChannel::look_around() {
  if (phase_ == Phase::kFailed) return false;
  const Phase before = phase_;
  device_->fetch_events();
  for (const verbs::Event& event : events_->take()) hear(event);
  if (link_ && link_->armed && link_->queue->take_event()) link_->armed = false;
  look_at_clock();
  return phase_ != before;
}

void RdmaChannel::hear(const verbs::Event& event) {
  switch (event.kind) {
    case verbs::EventKind::kPortDown:
      if (event.port != nic_.port.number || port_deadline_ != kNever) return;
      // It may come back before the peer's device loses patience.
      port_deadline_ = Clock::now() + config_.keepalive / 4;
      log(LogLevel::kInfo, "{}: {}", description_, event.text);
      return set_alarm();
    case verbs::EventKind::kPortUp:
      if (event.port != nic_.port.number) return;
      port_deadline_ = kNever;
      return set_alarm();
    case verbs::EventKind::kQueuePair:
      if (link_ && event.queue_pair == link_->pair->number() && phase_ != Phase::kAddressing) repair();
      return;
    case verbs::EventKind::kDeviceGone:
      return lose(ErrorCode::kPeerGone, fmt::format("{}: {}", description_, event.text));
    case verbs::EventKind::kOther: return;
  }
}

void RdmaChannel::look_at_clock() {
  const Clock::time_point now = Clock::now();
  if (now >= deadline_) {
    if (phase_ == Phase::kClosing) return finish();
    return lose(was_ready_ ? ErrorCode::kPeerGone : ErrorCode::kTimedOut,
                fmt::format("{}: the peer did not connect in time", description_));
  }
  if (now >= port_deadline_) {
    return lose(ErrorCode::kPeerGone, fmt::format("{}: the port went down", description_));
  }
  if (phase_ != Phase::kReady || now < probe_at_) return;
  // While requests are under way they show whether the peer is there.
  probe_at_ = now + config_.keepalive / 2;
  set_alarm();
  if (sender_.outstanding() != 0) return;
  if (const Status asked = sender_.probe(*link_); !asked) lose(asked.error());
}

// Batches may be sent again over another path once nothing of this one can arrive any more: when the peer's
// queue pair is gone too, or the peer itself.
void RdmaChannel::lose(ErrorCode code, const std::string& why) {
  if (phase_ == Phase::kFailed || phase_ == Phase::kClosing) return;
  log(LogLevel::kInfo, "an rdma channel is lost: {}", why);
  error_ = {code, why};
  drop_link();
  sender_.rewind();
  say_gone(why);
  if (!was_ready_ || sender_.empty()) return finish();
  phase_ = Phase::kClosing;
  deadline_ = Clock::now() + config_.keepalive / 3;
  port_deadline_ = probe_at_ = kNever;
  set_alarm();
}

void RdmaChannel::lose(const Error& error) {
  lose(ErrorCode::kPeerGone, fmt::format("{}: {}", description_, error.message));
}

void RdmaChannel::finish() {
  phase_ = Phase::kFailed;
  sender_.fail_all({ErrorCode::kPeerGone, error_.message});
  deadline_ = port_deadline_ = probe_at_ = kNever;
  set_alarm();
  polls_.remove(events_->fd());
  polls_.remove(device_->event_fd());
}

void RdmaChannel::say_gone(const std::string& why) {
  // One that the peer did not take up has nobody to tell, and its session refuses messages for it.
  if (!met_ || std::exchange(said_gone_, true) || setup_.control == nullptr) return;
  Bytes message;
  ByteWriter writer(message);
  writer.put(static_cast<std::uint8_t>(Message::kGone));
  writer.put(as_bytes(why).first(std::min(why.size(), kMostText)));
  setup_.control->send(message);
}

void RdmaChannel::set_alarm() {
  const Clock::time_point next = std::min({deadline_, port_deadline_, probe_at_});
  if (next == kNever) {
    polls_.clear_alarm();
  } else {
    polls_.set_alarm(next);
  }
}

}  // namespace p2p::rdma
