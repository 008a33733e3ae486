// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/connect/connector.h"

#include <sys/epoll.h>

#include "base/error.h"
#include "drivers/socket/socket.h"

namespace p2p::tcp {

Connector::Connector(const ChannelAddress& peer, const Secret& secret, socket::PollSet& polls)
    : peer_(peer.address),
      secret_(secret),
      polls_(&polls),
      greeting_{.token = peer.token},
      answer_(Answer::kBytes) {}

Result<Connector> Connector::dial(const socket::Address& local, const ChannelAddress& peer,
                                  const Secret& secret, socket::PollSet& polls) {
  Connector connector(peer, secret, polls);
  if (Status status = crypto::random_bytes(connector.greeting_.nonce); !status) {
    return tl::unexpected(status.error());
  }
  Result<UniqueFd> fd = socket::start_dial(local, peer.address);
  if (!fd) return tl::unexpected(fd.error());
  if (Status status = polls.add(fd->get(), EPOLLOUT); !status) return tl::unexpected(status.error());
  connector.fd_ = std::move(*fd);
  return connector;
}

Result<UniqueFd> Connector::advance() {
  if (!connected_) {
    const Result<bool> finished = socket::dial_finished(fd_.get());
    if (!finished) return tl::unexpected(finished.error());
    if (!*finished) return UniqueFd();
    connected_ = true;
    polls_->change(fd_.get(), EPOLLIN);
    if (Status status = send_message(fd_.get(), greeting_.encode()); !status) {
      return tl::unexpected(status.error());
    }
  }
  const Result<bool> complete = answer_.receive(fd_.get());
  if (!complete) return tl::unexpected(complete.error());
  if (!*complete) return UniqueFd();

  const Result<Answer> answer = Answer::decode(answer_.view());
  const crypto::MutualProof proof = proof_of(secret_, greeting_, answer ? answer->nonce : Nonce{});
  if (!answer || !proof.holds(Role::kAcceptor, answer->proof)) {
    return fail(ErrorCode::kPermissionDenied, "{} does not know the secret", peer_.describe());
  }
  const crypto::Digest mine = proof.by(Role::kConnector);
  if (Status status = send_message(fd_.get(), mine); !status) return tl::unexpected(status.error());
  key_ = proof.key();
  polls_->remove(fd_.get());
  return std::move(fd_);
}

}  // namespace p2p::tcp
