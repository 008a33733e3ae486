// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "base/unique_fd.h"
#include "engine/loop/reactor.h"
#include "engine/session/resume_attempt.h"
#include "transport/stream_port.h"

namespace p2p::engine {

/// Where the peer of a session may dial again, to go on with it. Whoever names the token is heard for a
/// moment, a few at a time; nothing happens to the session before one of them has proven to be its peer. On
/// the reactor's thread; its owner closes it before it goes.
class ResumeAcceptor : public std::enable_shared_from_this<ResumeAcceptor> {
 public:
  /// Who comes beyond takes the place of the first.
  static constexpr std::size_t kMostAttempts = 4;
  static constexpr std::chrono::milliseconds kTimeOfOne{2000};

  using Take = std::function<void(ResumeAttempt::Proven)>;

  ResumeAcceptor(Reactor& reactor, std::shared_ptr<StreamPort> port, const ResumeAttempt::Terms& terms,
                 Take take)
      : reactor_(reactor), port_(std::move(port)), terms_(terms), take_(std::move(take)) {}

  void open();
  void close();

 private:
  struct Guest {
    std::shared_ptr<ResumeAttempt> attempt;
    Reactor::TimerId limit{};
  };

  void hear(UniqueFd socket);
  void heard(std::uint64_t guest, Result<ResumeAttempt::Proven> outcome);
  void send_off(std::uint64_t guest);

  Reactor& reactor_;
  const std::shared_ptr<StreamPort> port_;
  const ResumeAttempt::Terms terms_;
  const Take take_;
  bool open_ = false;
  std::map<std::uint64_t, Guest> guests_;
  std::uint64_t next_ = 0;
  std::uint32_t last_attempt_ = 0;  // that succeeded: what comes late for one before it is of no use
};

}  // namespace p2p::engine
