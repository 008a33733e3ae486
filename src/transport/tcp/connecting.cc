// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/connecting.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace p2p::tcp {

Connecting::Connecting(const ChannelSetup& setup, std::chrono::milliseconds timeout, socket::PollSet& polls,
                       const socket::Address& local)
    : secret_(setup.secret),
      timeout_(timeout),
      polls_(&polls),
      address_{.address = local},
      description_(local.text()) {
  start_clock();
}

Result<Connecting> Connecting::start(const ChannelSetup& setup, std::chrono::milliseconds timeout,
                                     socket::PollSet& polls) {
  const Result<socket::Address> local = socket::Address::parse(setup.rail.address, 0);
  if (!local) return tl::unexpected(local.error());
  Connecting made(setup, timeout, polls, *local);
  if (setup.role == Role::kConnector) return made;
  Result<Acceptor> acceptor = Acceptor::listen(*local, setup.secret, polls);
  if (!acceptor) return tl::unexpected(acceptor.error());
  made.acceptor_.emplace(std::move(*acceptor));
  made.address_ = made.acceptor_->address();
  return made;
}

void Connecting::start_clock() {
  deadline_ = Clock::now() + timeout_;
  polls_->set_alarm(deadline_);
}

Status Connecting::connect(ByteView peer_address) {
  Result<ChannelAddress> peer = ChannelAddress::decode(peer_address);
  if (!peer) return tl::unexpected(peer.error());
  if (acceptor_) return {};
  if (connector_) return fail(ErrorCode::kInvalidArgument, "the channel is being connected already");
  if (peer->address.is_link_local()) peer->address.take_scope(address_.address);
  start_clock();
  Result<Connector> connector = Connector::dial(address_.address, *peer, secret_, *polls_);
  if (!connector) return tl::unexpected(connector.error());
  connector_.emplace(std::move(*connector));
  description_ = fmt::format("{} -> {}", address_.address.text(), peer->address.describe());
  return {};
}

Result<UniqueFd> Connecting::advance() {
  Result<UniqueFd> fd = acceptor_ ? acceptor_->advance() : connector_ ? connector_->advance() : UniqueFd();
  if (!fd) return fail(fd.error().code, "connect stream {}: {}", description_, fd.error().message);
  if (*fd) return fd;
  if (Clock::now() >= deadline_) {
    return fail(ErrorCode::kTimedOut, "connect stream {}: no peer within {} ms", description_,
                timeout_.count());
  }
  if (acceptor_) polls_->set_alarm(std::min(deadline_, acceptor_->next_deadline()));
  return UniqueFd();
}

}  // namespace p2p::tcp
