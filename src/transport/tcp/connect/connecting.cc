// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/connect/connecting.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace p2p::tcp {

Connecting::Connecting(const ChannelSetup& setup, std::chrono::milliseconds timeout, socket::PollSet& polls,
                       const socket::Address& local)
    : role_(setup.role),
      encrypt_(setup.encrypt),
      secret_(setup.secret),
      timeout_(timeout),
      polls_(&polls),
      address_{.address = local},
      description_(local.text()),
      path_(setup.path) {
  start_clock();
}

Result<Connecting> Connecting::start(const ChannelSetup& setup, std::chrono::milliseconds timeout,
                                     socket::PollSet& polls) {
  const Result<socket::Address> local = socket::Address::parse(setup.rail.address, 0);
  if (!local) return tl::unexpected(local.error());
  Connecting made(setup, timeout, polls, *local);
  if (setup.role == Role::kConnector) return made;
  Result<Acceptor> acceptor = accept(setup, *local, polls);
  if (!acceptor) return tl::unexpected(acceptor.error());
  made.acceptor_.emplace(std::move(*acceptor));
  made.address_ = made.acceptor_->address();
  return made;
}

// The peer has reached this side's port for the session, whatever lies between: so it does for streams. On
// other networks it is told where.
Result<Acceptor> Connecting::accept(const ChannelSetup& setup, const socket::Address& local,
                                    socket::PollSet& polls) {
  if (!setup.port) return Acceptor::listen(local, setup.secret, polls);
  if (setup.rail.address == setup.path.local_address) {
    return Acceptor::await(setup.port, {}, setup.secret, polls);
  }
  const Result<std::uint16_t> port = setup.port->open_at(setup.rail.address);
  if (!port) {
    log(LogLevel::kInfo, "streams of {} have a port of their own: {}", setup.rail.name, port.error().message);
    return Acceptor::listen(local, setup.secret, polls);
  }
  socket::Address reached = local;
  reached.set_port(*port);
  return Acceptor::await(setup.port, reached, setup.secret, polls);
}

void Connecting::start_clock() {
  deadline_ = Clock::now() + timeout_;
  polls_->set_alarm(deadline_);
}

Status Connecting::connect(ByteView peer_address) {
  Result<ChannelAddress> peer = ChannelAddress::decode(peer_address);
  if (!peer) return tl::unexpected(peer.error());
  if (acceptor_) return {};
  if (peer_) return fail(ErrorCode::kInvalidArgument, "the channel is being connected already");
  if (peer->address.family() == AF_UNSPEC) {
    const auto dialled = socket::Address::parse(path_.remote_address, path_.remote_port);
    if (!dialled) return tl::unexpected(dialled.error());
    peer->address = *dialled;
  }
  if (peer->address.is_link_local()) peer->address.take_scope(address_.address);
  start_clock();
  peer_ = *peer;
  description_ = fmt::format("{} -> {}", address_.address.text(), peer->address.describe());
  return dial();
}

Status Connecting::dial() {
  Result<Connector> connector = Connector::dial(address_.address, *peer_, secret_, *polls_);
  if (!connector) return tl::unexpected(connector.error());
  connector_.emplace(std::move(*connector));
  return {};
}

/// A port that strangers flood may close a connection that has not had the time to say what it is.
bool Connecting::dial_later() {
  const auto pause = backoff_.next();
  if (!pause) return false;
  connector_.reset();
  dial_at_ = Clock::now() + *pause;
  return true;
}

Result<UniqueFd> Connecting::advance_dial() {
  if (!peer_) return UniqueFd();
  if (!connector_) {
    if (Clock::now() < dial_at_) return UniqueFd();
    if (Status dialled = dial(); !dialled) return tl::unexpected(dialled.error());
  }
  Result<UniqueFd> fd = connector_->advance();
  if (!fd && fd.error().code == ErrorCode::kPeerGone && dial_later()) return UniqueFd();
  return fd;
}

void Connecting::set_alarm() {
  Clock::time_point next = deadline_;
  if (acceptor_) next = std::min(next, acceptor_->next_deadline());
  if (peer_ && !connector_) next = std::min(next, dial_at_);
  polls_->set_alarm(next);
}

/// Both sides have proven themselves: one that fails from here on was tampered with.
Status Connecting::start_tls(UniqueFd fd) {
  const crypto::Digest& key = acceptor_ ? acceptor_->key() : connector_->key();
  if (Status added = polls_->add(fd.get(), EPOLLIN); !added) return added;
  auto sealed = SealedStream::start(std::move(fd), role_, key);
  if (!sealed) return tl::unexpected(sealed.error());
  sealed_ = std::move(*sealed);
  return {};
}

Result<std::unique_ptr<socket::Stream>> Connecting::advance_stream() {
  if (!sealed_) {
    Result<UniqueFd> fd = acceptor_ ? acceptor_->advance() : advance_dial();
    if (!fd) return tl::unexpected(fd.error());
    if (!*fd) return nullptr;
    if (!encrypt_) return std::make_unique<socket::Stream>(std::move(*fd));
    if (Status started = start_tls(std::move(*fd)); !started) return tl::unexpected(started.error());
  }
  const Result<bool> sealed = sealed_->shake_hands();
  if (!sealed) return tl::unexpected(sealed.error());
  if (!*sealed) return nullptr;
  polls_->remove(sealed_->fd());
  return std::move(sealed_);
}

Result<std::unique_ptr<socket::Stream>> Connecting::advance() {
  Result<std::unique_ptr<socket::Stream>> stream = advance_stream();
  if (!stream)
    return fail(stream.error().code, "connect stream {}: {}", description_, stream.error().message);
  if (*stream) return stream;
  if (Clock::now() >= deadline_) {
    return fail(ErrorCode::kTimedOut, "connect stream {}: no peer within {} ms", description_,
                timeout_.count());
  }
  set_alarm();
  return nullptr;
}

}  // namespace p2p::tcp
