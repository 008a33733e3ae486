// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/channel.h"

#include <thread>
#include <utility>

#include "base/error.h"
#include "drivers/nccl_net/sigpipe.h"

namespace p2p::nccl_net {
namespace {

constexpr std::size_t kMaxEarly = 1024;

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

}  // namespace

Result<std::unique_ptr<Channel>> NetChannel::open(const ChannelSetup& setup, ChannelConfig config) {
  auto polls = socket::PollSet::open();
  if (!polls) return tl::unexpected(polls.error());
  const OnDevice on_device(config.flow);
  auto listener =
      Listener::open(config.plugin, config.device, config.flow.device >= 0 ? cuda::copy_now : copy_from_host,
                     config.flow.device);
  if (!listener) return tl::unexpected(listener.error());
  return std::unique_ptr<Channel>(
      new NetChannel(setup, std::move(config), std::move(*polls), std::move(*listener)));
}

NetChannel::NetChannel(const ChannelSetup& setup, ChannelConfig config, socket::PollSet polls,
                       Listener listener)
    : setup_(setup),
      config_(std::move(config)),
      polls_(std::move(polls)),
      messages_(setup_.control),
      close_handshake_(setup_.control),
      watch_(polls_, config_.keepalive, config_.hung),
      own_(config_.most_bytes, messages_),
      peers_({config_.registrations, setup.peer_identity}, messages_),
      handshake_(
          setup_, config_, std::move(listener), [this](const Message& message) { messages_.send(message); },
          handler()) {
  polls_.set_alarm(handshake_.deadline());
}

NetChannel::~NetChannel() {
  at_the_end_.emplace(config_.flow);
  close_comms();
  close_handshake_.send("the other side closed the channel");
}

Status NetChannel::connect(std::span<const std::byte> peer_address) {
  Status status = handshake_.connect(peer_address);
  if (status) close_handshake_.connected();
  return status;
}

ChannelState NetChannel::state() const {
  if (phase_ == Phase::kFailed) return ChannelState::kFailed;
  return phase_ == Phase::kConnecting ? ChannelState::kConnecting : ChannelState::kReady;
}

IncomingHandler NetChannel::handler() {
  return {
      .resolve =
          [this](const Chunk& chunk) { return chunk.response ? own_.resolve(chunk) : peers_.resolve(chunk); },
      .landed =
          [this](const Chunk& chunk, const Status& status) {
            return chunk.response ? own_.landed(chunk, status) : peers_.landed(chunk, status);
          }};
}

std::string NetChannel::describe() const {
  std::string place;
  const bool unpacks = config_.device.properties.unpacks();
  if (config_.flow.device >= 0) {
    place = fmt::format(" ({}on CUDA device {})", unpacks ? "UNPACK " : "", config_.flow.device);
  } else if (unpacks) {
    place = " (UNPACK, pool in host memory)";
  }
  return fmt::format("{} by {}{}", config_.device.label(), config_.plugin->name(), place);
}

bool NetChannel::busy() const {
  if (own_.has_completions() || messages_.pending()) return true;
  if (phase_ == Phase::kConnecting) return handshake_.started();
  return phase_ == Phase::kReady && (!outgoing_->idle() || !incoming_->idle());
}

Result<bool> NetChannel::connect_further() {
  const auto moved = handshake_.advance();
  if (!moved || !handshake_.over()) return moved;
  outgoing_.emplace(handshake_.take_outgoing());
  incoming_.emplace(handshake_.take_incoming());
  phase_ = Phase::kReady;
  watch_.start(Clock::now());
  for (Message& message : early_) {
    if (auto taken = take(std::move(message)); !taken) return tl::unexpected(taken.error());
  }
  early_.clear();
  return true;
}

bool NetChannel::post(const Batch& batch) {
  if (phase_ != Phase::kReady || !own_.post(batch, *outgoing_)) return false;
  watch_.posted();
  return true;
}

void NetChannel::abandon(BatchId id) {
  if (phase_ != Phase::kReady) return;  // ends with the channel
  own_.abandon(id, *outgoing_);
  messages_.flush();
}

bool NetChannel::progress(std::vector<Completion>& completions) {
  bool moved = false;
  const NoSigpipe quiet;
  const OnDevice on_device(config_.flow);
  if (phase_ == Phase::kConnecting || phase_ == Phase::kReady) {
    const auto stepped = phase_ == Phase::kConnecting ? connect_further() : move();
    if (!stepped) {
      lose(stepped.error());
    } else {
      moved = *stepped;
    }
  }
  messages_.flush();
  return own_.take(completions) || moved;
}

Result<bool> NetChannel::move() {
  const auto now = Clock::now();
  if (watch_.paused(now)) {
    // Threads that poll, of both sides, can be as many as there are cores: the session's threads, which bring
    // the announcements, are not to wait for a time slice to end.
    std::this_thread::yield();
    return true;
  }
  const auto sent = outgoing_->progress();
  if (!sent) return sent;
  const auto received = incoming_->progress();
  if (!received) return received;
  const bool ended = own_.end();
  peers_.end_reads();
  const bool moved = *sent || *received || ended;
  if (moved) watch_.moved(now);
  watch_.arrived(incoming_->arrived(), now);
  if (watch_.due(now)) {
    // A GPU that is busy with other work may hold up what is announced, at either side.
    const std::uint64_t awaited = config_.flow.device < 0 ? incoming_->awaited() : 0;
    if (auto alive = watch_.check(now, {busy(), awaited}); !alive) return tl::unexpected(alive.error());
    messages_.send(Ping{});
    outgoing_->sweep();
    incoming_->sweep();
  }
  return moved || (busy() && watch_.pause(now));
}

/// After this no memory is touched.
void NetChannel::close_comms() {
  const OnDevice on_device(config_.flow);
  outgoing_.reset();
  incoming_.reset();
  handshake_.stop();
}

void NetChannel::lose(const Error& why) {
  if (phase_ == Phase::kClosing || phase_ == Phase::kFailed) return;
  const bool was_ready = phase_ == Phase::kReady;
  phase_ = Phase::kClosing;
  error_ = {why.code, fmt::format("{}: {}", describe(), why.message)};
  close_comms();
  polls_.clear_alarm();
  peers_.clear();
  messages_.flush();
  close_handshake_.send(error_.message);
  if (!was_ready || own_.empty() || close_handshake_.both_sent()) finish();
}

void NetChannel::finish() {
  phase_ = Phase::kFailed;
  own_.fail({ErrorCode::kPeerGone, error_.message});
}

Status NetChannel::on_control(std::span<const std::byte> message) {
  if (phase_ == Phase::kFailed) return {};
  watch_.heard(Clock::now());
  const Status status = take_control(message);
  if (!status) lose(status.error());
  messages_.flush();
  if (!status) return tl::unexpected(error_);
  return {};
}

Status NetChannel::take_control(std::span<const std::byte> message) {
  if (message.empty() || message.front() != kPackedMessages) {
    const auto why = close_handshake_.receive(message);
    if (!why) return tl::unexpected(why.error());
    lose({ErrorCode::kPeerGone, *why});
    if (phase_ == Phase::kClosing) finish();
    return {};
  }
  auto messages = unpack(message.subspan(1));
  if (!messages) return tl::unexpected(messages.error());
  for (Message& one : *messages) {
    if (Status taken = take_early_or_now(std::move(one)); !taken) return taken;
  }
  return {};
}

Status NetChannel::take_early_or_now(Message message) {
  if (phase_ == Phase::kClosing) return {};
  if (phase_ == Phase::kReady) return take(std::move(message));
  if (early_.size() == kMaxEarly) {
    return fail(ErrorCode::kProtocol, "too many messages before the comms are connected");
  }
  early_.push_back(std::move(message));
  return {};
}

Status NetChannel::take(Message message) {
  return std::visit(
      Overloaded{[](Ping&) { return Status{}; }, [this](Chunk& chunk) { return take(std::move(chunk)); },
                 [this](const Done& done) { return own_.take(done); },
                 [this](const ReadRequest& read) {
                   watch_.moved(Clock::now());
                   return peers_.take(read, *outgoing_);
                 },
                 [this](const Cancel& cancel) { return peers_.take(cancel, *outgoing_); }},
      message);
}

Status NetChannel::take(Chunk chunk) {
  watch_.moved(Clock::now());
  if (chunk.size > config_.flow.chunk_bytes) {
    return fail(ErrorCode::kProtocol, "a message of {} bytes, more than our {}", chunk.size,
                config_.flow.chunk_bytes);
  }
  if (Status due = chunk.response ? own_.announced(chunk) : peers_.announced(chunk); !due) return due;
  return incoming_->announce(std::move(chunk));
}

}  // namespace p2p::nccl_net
