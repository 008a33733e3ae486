// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/channel.h"

#include <sys/epoll.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "drivers/socket/interfaces.h"
#include "drivers/socket/socket.h"

namespace p2p::tcp {
namespace {

// Between processes of one host the kernel's own tuning starts too small.
constexpr int kLocalBufferBytes = 4 << 20;
// Answers that one stream may have on their way to this side.
constexpr std::uint64_t kReadBytes = 8U << 20;

}  // namespace

Result<std::unique_ptr<Channel>> StreamChannel::open(const ChannelSetup& setup, ChannelConfig config) {
  Result<socket::Address> local = socket::Address::parse(setup.rail.address, 0);
  if (!local) return tl::unexpected(local.error());
  Result<socket::PollSet> polls = socket::PollSet::open();
  if (!polls) return tl::unexpected(polls.error());
  std::unique_ptr<StreamChannel> channel(
      new StreamChannel(setup, std::move(config), std::move(*polls), {.address = *local}));
  if (setup.role == Role::kAcceptor) {
    Result<Acceptor> acceptor = Acceptor::listen(*local, setup.secret, channel->polls_);
    if (!acceptor) return tl::unexpected(acceptor.error());
    channel->acceptor_.emplace(std::move(*acceptor));
    channel->address_ = channel->acceptor_->address();
  }
  return channel;
}

StreamChannel::StreamChannel(const ChannelSetup& setup, ChannelConfig config, socket::PollSet polls,
                             ChannelAddress address)
    : setup_(setup),
      config_(std::move(config)),
      polls_(std::move(polls)),
      address_(address),
      deadline_(Clock::now() + config_.connect_timeout),
      description_(address.address.text()),
      sender_(completions_),
      receiver_(*this),
      device_(config_.staging, sender_, completions_) {
  polls_.set_alarm(deadline_);
}

StreamChannel::~StreamChannel() {
  device_.fail({ErrorCode::kCancelled, "the channel was closed"});
  if (fd_ && sender_.zerocopy_outstanding()) socket::discard_at_close(fd_.get());
}

Status StreamChannel::connect(std::span<const std::byte> peer_address) {
  Result<ChannelAddress> peer = ChannelAddress::decode(peer_address);
  if (!peer) return tl::unexpected(peer.error());
  if (setup_.role == Role::kAcceptor || state_ != ChannelState::kConnecting) return {};
  if (dialer_) return fail(ErrorCode::kInvalidArgument, "the channel is being connected already");
  if (peer->address.is_link_local()) peer->address.take_scope(address_.address);
  deadline_ = Clock::now() + config_.connect_timeout;
  polls_.set_alarm(deadline_);
  Result<Dialer> dialer = Dialer::dial(address_.address, *peer, setup_.secret, polls_);
  if (!dialer) return tl::unexpected(dialer.error());
  dialer_.emplace(std::move(*dialer));
  description_ = fmt::format("{} -> {}", address_.address.text(), peer->address.describe());
  return {};
}

bool StreamChannel::advance_handshake() {
  Result<UniqueFd> fd = acceptor_ ? acceptor_->advance() : dialer_ ? dialer_->advance() : UniqueFd();
  if (!fd) {
    lose({fd.error().code, fmt::format("connect stream {}: {}", description_, fd.error().message)});
    return true;
  }
  if (*fd) {
    if (Status status = become_ready(std::move(*fd)); !status) lose(status.error());
    return true;
  }
  const Clock::time_point now = Clock::now();
  if (now >= deadline_) {
    lose({ErrorCode::kTimedOut, fmt::format("connect stream {}: no peer within {} ms", description_,
                                            config_.connect_timeout.count())});
    return true;
  }
  if (acceptor_) polls_.set_alarm(std::min(deadline_, acceptor_->next_deadline()));
  return false;
}

Status StreamChannel::become_ready(UniqueFd fd) {
  const Result<socket::Address> local = socket::local_address(fd.get());
  const Result<socket::Address> remote = socket::peer_address(fd.get());
  if (!local) return tl::unexpected(local.error());
  if (!remote) return tl::unexpected(remote.error());
  const bool same_host = socket::is_local(*remote);
  const socket::StreamOptions options{.user_timeout = config_.keepalive,
                                      .buffer_bytes = same_host ? kLocalBufferBytes : 0};
  if (Status status = socket::tune_stream(fd.get(), options); !status) return status;
  // On one host the kernel copies all the same, and later.
  if (!same_host) sender_.enable_zerocopy(fd.get(), config_.zerocopy_bytes);
  if (Status status = polls_.add(fd.get(), EPOLLIN); !status) return status;
  polls_.clear_alarm();
  description_ = fmt::format("{} -> {}", local->describe(), remote->describe());
  acceptor_.reset();
  dialer_.reset();
  fd_ = std::move(fd);
  state_ = ChannelState::kReady;
  return {};
}

void StreamChannel::lose(const Error& why) {
  if (state_ == ChannelState::kFailed) return;
  log(LogLevel::kDebug, "tcp stream {} is lost: {}", description_, why.message);
  state_ = ChannelState::kFailed;
  error_ = why;
  if (fd_) socket::discard_at_close(fd_.get());
  fd_.reset();
  acceptor_.reset();
  dialer_.reset();
  polls_.clear_alarm();
  const Error gone{ErrorCode::kPeerGone, fmt::format("stream {}: {}", description_, why.message)};
  sender_.fail(gone);
  device_.fail(gone);
  arrival_.reset();
  for (const Read& read : reads_) {
    if (!read.abandoned) completions_.push_back({read.batch.id, tl::unexpected(gone)});
  }
  reads_.clear();
}

bool StreamChannel::post(const Batch& batch) {
  if (state_ != ChannelState::kReady) return false;
  const bool idle = !sender_.pending();
  if (batch.operation == Operation::kRead) {
    if (!post_read(batch)) return false;
  } else {
    const bool from_device = starts_on_device(batch);
    if (!sender_.takes_write(batch.bytes) || !device_.takes_write(batch, from_device)) return false;
    if (from_device) {
      if (!device_.post_write(batch, staged_memory(batch))) return false;
    } else {
      if (ends_on_device(batch)) device_.note_write(batch);
      sender_.post_write(batch);
    }
  }
  // What came from a device is there already if this thread stood still for a moment.
  if (!idle) return true;
  if (Result<bool> flushed = sender_.flush(fd_.get()); !flushed) {
    lose(flushed.error());
  } else {
    watch_output();
  }
  return true;
}

bool StreamChannel::post_read(const Batch& batch) {
  const bool room =
      reads_.size() < kMaxReads && (read_bytes_ == 0 || read_bytes_ + batch.bytes <= kReadBytes);
  if (!room) return false;
  Read read{.number = next_read_, .batch = batch};
  if (starts_on_device(batch)) {
    const auto slot = device_.slot_for_answer(batch.bytes);
    if (slot && *slot == nullptr) return false;
    if (!slot) {
      completions_.push_back({batch.id, tl::unexpected(slot.error())});
      return true;
    }
    read.slot = *slot;
  }
  sender_.post_read_request(read.number, batch);
  ++next_read_;
  read_bytes_ += batch.bytes;
  reads_.push_back(std::move(read));
  return true;
}

bool StreamChannel::progress(std::vector<Completion>& completions) {
  bool moved = false;
  if (state_ == ChannelState::kConnecting) {
    moved = advance_handshake();
  } else if (state_ == ChannelState::kReady) {
    moved = move_bytes();
  }
  if (completions_.empty()) return moved;
  for (const Completion& completion : completions_) device_.completed(completion.id);
  std::move(completions_.begin(), completions_.end(), std::back_inserter(completions));
  completions_.clear();
  return true;
}

bool StreamChannel::busy() const {
  return !completions_.empty() || device_.busy() ||
         std::any_of(reads_.begin(), reads_.end(), [](const Read& read) { return read.slot && read.ended; });
}

bool StreamChannel::move_bytes() {
  bool copied = device_.progress();
  copied = settle_reads() || copied;
  if (const Status settled = settle_writes(); !settled) {
    lose(settled.error());
    return true;
  }
  const Result<Receiver::Received> received = receiver_.receive(fd_.get());
  if (!received) {
    lose(received.error());
    return true;
  }
  if (!received->more && unacknowledged_frames_ != 0) sender_.want_acknowledgement();
  const Result<bool> flushed = sender_.flush(fd_.get());
  if (!flushed) {
    lose(flushed.error());
    return true;
  }
  if (!received->more) unacknowledged_frames_ = unacknowledged_bytes_ = 0;
  watch_output();
  return received->bytes != 0 || *flushed || copied;
}

void StreamChannel::watch_output() {
  const bool wanted = sender_.pending();
  if (wanted == watching_output_) return;
  watching_output_ = wanted;
  polls_.change(fd_.get(), wanted ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void StreamChannel::abandon(BatchId id) {
  if (device_.abandon(id) || sender_.abandon(id)) return;
  const auto read = std::find_if(reads_.begin(), reads_.end(), [id](const Read& candidate) {
    return !candidate.abandoned && candidate.batch.id == id;
  });
  // A copy to a device that has begun ends within moments, with the true outcome.
  if (read == reads_.end() || (read->slot != nullptr && read->landed)) return;
  completions_.push_back({id, fail(ErrorCode::kCancelled, "cancelled before its end")});
  if (sender_.withdraw_read_request(read->number)) {
    read_bytes_ -= read->batch.bytes;
    if (read->slot != nullptr) device_.drop_answer(*read->slot);
    reads_.erase(read);
    return;
  }
  // The answer may be on its way: it is thrown away when it comes.
  read->abandoned = true;
  read->batch.segments = {};
  receiver_.discard_response(read->number);
}

std::string StreamChannel::describe() const { return description_; }

}  // namespace p2p::tcp
