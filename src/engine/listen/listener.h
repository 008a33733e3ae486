// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/rate_limited_log.h"
#include "base/unique_fd.h"
#include "drivers/socket/address.h"
#include "engine/listen/first_bytes.h"
#include "engine/listen/strangers.h"
#include "engine/loop/reactor.h"
#include "transport/stream_port.h"

namespace p2p::engine {

/// The endpoint's open port: takes connections, keeps those that have not proven themselves within bounds,
/// and finds out what each is. Leaves descriptors to the application, and pauses where the system has none
/// left. On the reactor's thread, but for what StreamPort and the comments say.
class Listener : public StreamPort {
 public:
  struct Settings {
    Strangers::Limits strangers;
    std::size_t spare_descriptors = 0;      ///< of the process's limit, left to the application
    std::chrono::milliseconds patience{0};  ///< for a connection's first bytes
  };

  /// Gets a connection that speaks the control protocol, and the stranger that it is until `proven`, which
  /// does not come before it returns. Gives what sends it off.
  using Welcome = std::function<Strangers::Drop(UniqueFd socket, Strangers::Id stranger)>;

  /// The reactor runs no handler of it after `close` and before its own end.
  Listener(Reactor& reactor, Settings settings, Welcome welcome);
  ~Listener() override = default;

  /// Listens on `address`; port 0: the system chooses. Any thread before `start`, then the reactor's.
  Result<socket::Address> open(const socket::Address& address);
  void discard_all() { sockets_.clear(); }  ///< before `start`
  void start();
  void close();

  /// What it has shown was right so far.
  void answered(Strangers::Id stranger) { strangers_.answered(stranger, Strangers::Clock::now()); }

  /// It is no stranger any more: it has proven itself, or is gone.
  void proven(Strangers::Id stranger) { strangers_.remove(stranger); }

  /// Connections that were closed as strangers. Any thread.
  std::uint64_t refused() const { return strangers_.refused(); }

  Result<std::uint16_t> open_at(const std::string& address) override;
  void expect(const Token& token, Take take) override;
  void forget(const Token& token) override;

 private:
  struct Guest {
    UniqueFd fd;
    std::optional<Reactor::TimerId> timer;  // since it is watched
  };
  using Id = Strangers::Id;

  void watch(int listener);
  void accept_some(int listener);
  bool is_scarce(const UniqueFd& newest) const;
  bool make_descriptor_free(UniqueFd& newest);
  void receive(UniqueFd socket);
  void look(Id id, std::uint32_t events);
  void wait_for(Id id, std::size_t bytes);
  UniqueFd let_go(Id id);
  void refuse(Id id, const char* why);
  void take_named(Id id, const FirstBytes& first);
  bool hand_on(const Token& token, UniqueFd& socket);
  void pause();

  Reactor& reactor_;
  const Settings settings_;
  const Welcome welcome_;
  std::vector<UniqueFd> sockets_;
  bool paused_ = false;
  bool closed_ = false;
  Strangers strangers_;
  std::map<Id, Guest> guests_;  // that have not said what they are
  RateLimitedLog refusals_{LogLevel::kInfo};
  RateLimitedLog crowds_{LogLevel::kWarning};
  RateLimitedLog shortages_{LogLevel::kWarning};

  Mutex mutex_;
  std::map<Token, Take> expected_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
