// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/channel.h"

#include <sys/epoll.h>

#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "drivers/socket/interfaces.h"
#include "drivers/socket/socket.h"

namespace p2p::tcp {
namespace {

// Between processes of one host the kernel's own tuning starts too small.
constexpr int kLocalBufferBytes = 4 << 20;

// This side's thread is behind with so much: twice what the receiver lets come before it is woken.
constexpr std::uint64_t kMuchUnread = 512U << 10;

// On its way at once a stream has as much as the usual bounds of the kernel's buffers allow.
constexpr std::uint64_t kCoveredPath = 2U << 20;

// With BBR one stream fills any path that its buffers cover. Many of them overrun a small one, since each
// keeps some packets on the way however small its share. The peer's control is taken to be this side's.
bool fills_path(int fd, const socket::Traffic& traffic) {
  return traffic.round_trip >= kLongPath && traffic.on_path <= kCoveredPath && !traffic.waits_for_buffers &&
         socket::withstands_loss(fd);
}

}  // namespace

Result<std::unique_ptr<Channel>> StreamChannel::open(const ChannelSetup& setup, ChannelConfig config) {
  Result<socket::PollSet> polls = socket::PollSet::open();
  if (!polls) return tl::unexpected(polls.error());
  std::unique_ptr<StreamChannel> channel(new StreamChannel(setup, std::move(config), std::move(*polls)));
  Result<Connecting> connecting = Connecting::start(setup, channel->config_.connect_timeout, channel->polls_);
  if (!connecting) return tl::unexpected(connecting.error());
  channel->address_ = connecting->address().encode();
  channel->connecting_.emplace(std::move(*connecting));
  return channel;
}

StreamChannel::StreamChannel(const ChannelSetup& setup, ChannelConfig config, socket::PollSet polls)
    : setup_(setup),
      config_(std::move(config)),
      polls_(std::move(polls)),
      close_handshake_(setup.control),
      liveness_(polls_, config_.keepalive, setup.stalls),
      description_(setup.rail.address),
      staging_(std::make_shared<device::Staging>(config_.staging, kStagingShare, config_.stages)),
      sender_(completions_, liveness_),
      receiver_(*this),
      departures_(staging_, sender_, completions_),
      reads_(staging_, sender_, completions_),
      peer_({config_.registrations, setup.peer_identity}, sender_, staging_, departures_) {}

StreamChannel::~StreamChannel() {
  staging_->close();
  close_handshake_.send("the peer closed the stream");
  if (stream_ && sender_.zerocopy_outstanding()) socket::discard_at_close(stream_->fd());
}

Status StreamChannel::connect(std::span<const std::byte> peer_address) {
  if (!connecting_) return {};
  Status status = connecting_->connect(peer_address);
  if (status) close_handshake_.connected();
  description_ = connecting_->description();
  return status;
}

bool StreamChannel::connect_further() {
  Result<std::unique_ptr<socket::Stream>> stream = connecting_->advance();
  if (stream && !*stream) return false;
  const Status ready = stream ? become_ready(std::move(*stream)) : tl::unexpected(stream.error());
  if (!ready) lose(ready.error());
  return true;
}

Status StreamChannel::become_ready(std::unique_ptr<socket::Stream> stream) {
  const Result<socket::Address> local = socket::local_address(stream->fd());
  const Result<socket::Address> remote = socket::peer_address(stream->fd());
  if (!local) return tl::unexpected(local.error());
  if (!remote) return tl::unexpected(remote.error());
  const bool same_host = socket::is_local(*remote);
  const socket::StreamOptions options{.keepalive = config_.keepalive,
                                      .buffer_bytes = same_host ? kLocalBufferBytes : 0,
                                      .within_host = same_host};
  if (Status status = socket::tune_stream(stream->fd(), options); !status) return status;
  if (Status status = polls_.add(stream->fd(), EPOLLIN); !status) return status;
  polls_.clear_alarm();
  description_ =
      fmt::format("{} -> {}{}", local->describe(), remote->describe(), stream->encrypted() ? ", TLS" : "");
  connecting_.reset();
  stream_ = std::move(stream);
  // On one host the kernel copies all the same, and later.
  sender_.start(*stream_, same_host ? 0 : config_.zerocopy_bytes);
  if (const auto least = socket::least_round_trip(stream_->fd()); least >= kLongPath) {
    backlog_.start(stream_->fd(), least);
    sender_.set_long_path();
    reads_.set_long_path(least);
  }
  liveness_.start(stream_->fd());
  phase_ = Phase::kReady;
  return {};
}

PathUse StreamChannel::path_use() const {
  if (!stream_) return {};
  const socket::Traffic traffic = socket::traffic_of(stream_->fd());
  return {.sent = traffic.acknowledged,
          .received = traffic.received,
          .send_waits = traffic.unsent != 0 && !traffic.window_full(),
          .unread = traffic.unread >= kMuchUnread,
          .round_trip = traffic.round_trip,
          .fills_path = fills_path(stream_->fd(), traffic),
          .stalled_for = liveness_.stalled_for()};
}

ChannelState StreamChannel::state() const {
  if (phase_ == Phase::kFailed) return ChannelState::kFailed;
  return phase_ == Phase::kConnecting ? ChannelState::kConnecting : ChannelState::kReady;
}

void StreamChannel::lose(const Error& why) {
  if (phase_ == Phase::kClosing || phase_ == Phase::kFailed) return;
  log(LogLevel::kDebug, "tcp stream {} is lost: {}", description_, why.message);
  const bool was_ready = phase_ == Phase::kReady;
  phase_ = Phase::kClosing;
  error_ = why;
  if (stream_) socket::discard_at_close(stream_->fd());
  stream_.reset();
  connecting_.reset();
  polls_.clear_alarm();
  staging_->close();
  departures_.stop();
  peer_.clear();
  close_handshake_.send(why.message);
  if (!was_ready || close_handshake_.both_sent()) finish();
}

void StreamChannel::finish() {
  phase_ = Phase::kFailed;
  const Error gone{ErrorCode::kPeerGone, fmt::format("stream {}: {}", description_, error_.message)};
  sender_.fail(gone);
  departures_.fail(gone);
  reads_.fail(gone);
}

Status StreamChannel::on_control(std::span<const std::byte> message) {
  const Result<std::string> why = close_handshake_.receive(message);
  if (!why) return tl::unexpected(why.error());
  lose({ErrorCode::kPeerGone, "the peer gave it up: " + *why});
  if (phase_ == Phase::kClosing) finish();
  return {};
}

bool StreamChannel::post(const Batch& batch) {
  if (phase_ != Phase::kReady) return false;
  const bool idle = !sender_.pending();
  if (batch.operation == Operation::kRead) {
    if (!reads_.post(batch)) return false;
  } else {
    const bool from_device = starts_on_device(batch);
    if (!sender_.takes_write(batch.bytes) || !departures_.takes_write(batch, from_device)) return false;
    if (from_device) {
      departures_.post_write(batch);
    } else {
      if (ends_on_device(batch)) departures_.note_write(batch);
      sender_.post_write(batch);
    }
  }
  // What came from a device is there already if this thread stood still for a moment.
  if (!idle) return true;
  if (const Result<bool> flushed = flush(); !flushed) lose(flushed.error());
  return true;
}

bool StreamChannel::say(std::span<const std::byte> block) {
  if (phase_ != Phase::kReady || !sender_.post_messages(block)) return false;
  if (const Result<bool> flushed = flush(); !flushed) lose(flushed.error());
  return true;
}

void StreamChannel::probe() {
  if (phase_ != Phase::kReady || sender_.pending()) return;
  sender_.post_acknowledgement();
  if (const Result<bool> flushed = flush(); !flushed) lose(flushed.error());
}

bool StreamChannel::progress(std::vector<Completion>& completions) {
  bool moved = false;
  if (phase_ == Phase::kConnecting) {
    moved = connect_further();
  } else if (phase_ == Phase::kReady) {
    moved = move_bytes();
  }
  if (completions_.empty()) return moved;
  for (const Completion& completion : completions_) departures_.completed(completion.id);
  std::move(completions_.begin(), completions_.end(), std::back_inserter(completions));
  completions_.clear();
  return true;
}

bool StreamChannel::busy() const {
  if (phase_ == Phase::kClosing) return !completions_.empty();
  const bool holds = stream_ && stream_->holds();
  return holds || !completions_.empty() || departures_.busy() || reads_.busy() || peer_.busy();
}

bool StreamChannel::move_bytes() {
  bool moved = departures_.progress();
  moved = reads_.settle() || moved;
  Status status = liveness_.check();
  if (status) status = peer_.settle();
  if (status) {
    const Result<Receiver::Received> received = receiver_.receive(*stream_);
    if (received) {
      moved = moved || received->bytes != 0;
      if (!received->more) peer_.acknowledge();
    } else {
      status = tl::unexpected(received.error());
    }
  }
  const Result<bool> sent = status ? flush() : tl::unexpected(status.error());
  if (!sent) lose(sent.error());
  return moved || !sent || *sent;
}

Result<bool> StreamChannel::flush() {
  if (backlog_.started() && sender_.pending()) backlog_.follow();
  const Result<bool> sent = sender_.flush();
  const bool wanted = sender_.pending();
  if (sent && wanted != watching_output_) {
    watching_output_ = wanted;
    if (!polled_) watch();
  }
  return sent;
}

// What comes while somebody polls wakes nobody, which its sender would pay for.
void StreamChannel::watch() {
  const std::uint32_t events = watching_output_ ? EPOLLIN | EPOLLOUT : EPOLLIN;
  polls_.change(stream_->fd(), polled_ ? 0 : events);
}

bool StreamChannel::enter_polling() {
  if (phase_ != Phase::kReady) return false;
  if (!std::exchange(polled_, true)) watch();
  return true;
}

bool StreamChannel::arm_events() {
  if (std::exchange(polled_, false) && stream_) watch();
  return true;
}

void StreamChannel::abandon(BatchId id) {
  if (!departures_.abandon(id) && !sender_.abandon(id)) reads_.abandon(id, receiver_);
}

Status StreamChannel::begin_frame(const FrameHeader& header, ByteView descriptors, Landing& landing) {
  // Before the acknowledgement that may cover it.
  if (header.type == FrameType::kRefusal) {
    Status status = sender_.refused(header.number, wire_error(header.code, descriptors));
    if (!status) return status;
  }
  if (Status status = sender_.acknowledged(header.acknowledged); !status) return status;
  switch (header.type) {
    case FrameType::kWrite: return peer_.begin_write(header, descriptors, landing);
    case FrameType::kReadRequest: return peer_.serve_read(header, descriptors);
    case FrameType::kReadResponse: return reads_.begin_response(header, landing);
    case FrameType::kReadEnd: return reads_.end(header, descriptors);
    case FrameType::kMessages:
      if (setup_.messages != nullptr) setup_.messages->take(descriptors);
      return {};
    case FrameType::kAck:
    case FrameType::kRefusal: return {};
  }
  return {};
}

Status StreamChannel::end_frame(const FrameHeader& header, const Landing& landing) {
  if (header.type == FrameType::kWrite) return peer_.end_write(header, landing);
  if (header.type == FrameType::kReadResponse) reads_.end_response(header, landing);
  return {};
}

}  // namespace p2p::tcp
