// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "drivers/socket/address.h"
#include "engine/loop/reactor.h"
#include "p2p/result.h"

namespace p2p::engine {

/// Finds the addresses of a host and connects to the first that answers, without blocking the reactor, on
/// whose thread all of it runs. Names are looked up on a thread of their own, which touches nothing here and
/// may outlive the dialer.
class Dialer : public std::enable_shared_from_this<Dialer> {
 public:
  /// Gets a connected, non-blocking socket, or why there is none.
  using Done = std::function<void(Result<UniqueFd>)>;

  struct Resolution;  // what the look-up thread fills in

  Dialer(Reactor& reactor, std::string host, std::uint16_t port);
  ~Dialer();

  /// Calls `done` once, not before it returns. Sets no deadline: `stop` ends it.
  void start(Done done);

  /// `done` is not called any more.
  void stop();

  /// What it is at, for errors: "look up gpu7", "connect to 10.0.0.7:4001".
  std::string describe() const;

 private:
  Status read_host();
  void look_up();
  void take_answers();
  void try_next();
  void take_outcome();
  void finish(Result<UniqueFd> outcome);

  Reactor& reactor_;
  std::string host_;
  std::uint16_t port_;
  Done done_;
  std::shared_ptr<Resolution> resolution_;
  std::vector<socket::Address> answers_;
  std::size_t next_ = 0;
  UniqueFd socket_;
  std::optional<Error> failure_;  // of the address tried last
};

}  // namespace p2p::engine
