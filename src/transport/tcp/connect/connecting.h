// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/backoff.h"
#include "base/unique_fd.h"
#include "drivers/socket/poll_set.h"
#include "drivers/socket/stream.h"
#include "p2p/result.h"
#include "transport/tcp/connect/acceptor.h"
#include "transport/tcp/connect/connector.h"
#include "transport/tcp/connect/sealed_stream.h"
#include "transport/transport.h"

namespace p2p::tcp {

/// A stream that is being connected, from either side, until both have proven themselves, and it is encrypted
/// if that is asked for, or the time is over.
/// Uses the poll set's alarm.
class Connecting {
 public:
  static Result<Connecting> start(const ChannelSetup& setup, std::chrono::milliseconds timeout,
                                  socket::PollSet& polls);

  /// What the other side has to know.
  const ChannelAddress& address() const { return address_; }

  /// Dials, unless this is the side that is dialled. `peer_address` came from the peer.
  Status connect(ByteView peer_address);

  /// Moves on what can be moved: the stream, out of the poll set, once frames may follow; null before.
  Result<std::unique_ptr<socket::Stream>> advance();

  /// Between whom, as far as it is known.
  const std::string& description() const { return description_; }

 private:
  Connecting(const ChannelSetup& setup, std::chrono::milliseconds timeout, socket::PollSet& polls,
             const socket::Address& local);
  static Result<Acceptor> accept(const ChannelSetup& setup, const socket::Address& local,
                                 socket::PollSet& polls);
  void start_clock();
  Status dial();
  Result<UniqueFd> advance_dial();
  Result<std::unique_ptr<socket::Stream>> advance_stream();
  Status start_tls(UniqueFd fd);
  bool dial_later();
  void set_alarm();

  Role role_;
  bool encrypt_;
  Secret secret_;
  std::chrono::milliseconds timeout_;
  socket::PollSet* polls_;
  ChannelAddress address_;
  std::string description_;
  Clock::time_point deadline_;
  std::optional<Acceptor> acceptor_;  // one of them

  PeerPath path_;
  std::optional<ChannelAddress> peer_;  // that is dialled
  std::optional<Connector> connector_;
  Backoff backoff_{kRedials};
  Clock::time_point dial_at_;  // once more, while there is no connector

  std::unique_ptr<SealedStream> sealed_;  // TLS has begun
};

}  // namespace p2p::tcp
