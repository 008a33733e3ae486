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

/// The endpoint's open port: accepts connections, finds out from the first bytes what each is, and bounds
/// those that have not proven who they are. Leaves some descriptors to the application, and pauses when the
/// process has none left. Call it on the reactor's thread, but for what StreamPort and the comments allow
/// elsewhere.
class Listener : public StreamPort {
 public:
  struct Settings {
    Strangers::Limits strangers;
    std::size_t spare_descriptors = 0;      ///< that the process may open and this leaves to the application
    std::chrono::milliseconds patience{0};  ///< how long a connection may take for its first bytes
  };

  /// Gets the control connection of a new session. It counts as `stranger` until `proven` is called, which
  /// must not happen before this returns. Returns what closes it.
  using Welcome = std::function<Strangers::Drop(UniqueFd socket, Strangers::Id stranger)>;

  /// `reactor` outlives it. After `close` no handler of this object runs any more.
  Listener(Reactor& reactor, Settings settings, Welcome welcome);
  ~Listener() override = default;

  /// Listens on `address`, with port 0 on one that the system chooses, and returns what it got; kSystem if
  /// the address cannot be had. Any thread before `start`, then the reactor's.
  Result<socket::Address> open(const socket::Address& address);
  /// Closes what `open` opened. Before `start` only.
  void discard_all() { sockets_.clear(); }
  void start();

  /// Accepts nothing more, and closes all that have not proven who they are.
  void close();

  /// The first step of its proof was right: it gets more time (see Strangers).
  void answered(Strangers::Id stranger) { strangers_.answered(stranger, Strangers::Clock::now()); }

  /// It has said who it is, where nobody proves that: it counts on, and gets time for its first channel.
  void introduced(Strangers::Id stranger) { strangers_.introduced(stranger, Strangers::Clock::now()); }

  /// It has proven who it is, or is gone: it counts no more.
  void proven(Strangers::Id stranger) { strangers_.remove(stranger); }

  /// Connections that were closed before they had proven who they are. Any thread.
  std::uint64_t refused() const { return strangers_.refused(); }

  Result<std::uint16_t> open_at(const std::string& address) override;
  void expect(const Token& token, Take take) override;
  void forget(const Token& token) override;

 private:
  struct Guest {
    UniqueFd fd;
    std::optional<Reactor::TimerId> timer;  // none before it is watched
  };
  using Id = Strangers::Id;

  void watch(int listener);
  void accept_some(int listener);
  bool is_scarce(const UniqueFd& newest) const;
  bool make_descriptor_free(UniqueFd& newest);
  void receive(UniqueFd socket);
  void look(Id id, std::uint32_t events);
  void wait_for(Id id, std::size_t bytes);
  UniqueFd release(Id id);
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
  std::map<Id, Guest> guests_;  // whose first bytes have not told yet what they are
  RateLimitedLog refusals_{LogLevel::kInfo};
  RateLimitedLog crowds_{LogLevel::kWarning};
  RateLimitedLog shortages_{LogLevel::kWarning};

  Mutex mutex_;
  std::map<Token, Take> expected_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
