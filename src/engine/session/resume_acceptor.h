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

/// Where the peer of a session may dial again, to go on with it. Only a Resume that the peer has made gets a
/// place, for a moment; nothing happens to the session before its sender has proven to be the peer. The peer
/// gives an attempt up before it makes the next one, so a Resume with an older number than one that has come
/// was overheard and is refused, and a newer one takes the places of all older ones. Copies of the newest one
/// share a few places, and none takes another's. On the reactor's thread; its owner closes it before it goes.
class ResumeAcceptor : public std::enable_shared_from_this<ResumeAcceptor> {
 public:
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
  Status admit(const Result<std::uint32_t>& attempt);
  void heard(std::uint64_t guest, Result<ResumeAttempt::Proven> outcome);
  void send_off(std::uint64_t guest);

  Reactor& reactor_;
  const std::shared_ptr<StreamPort> port_;
  const ResumeAttempt::Terms terms_;
  const Take take_;
  bool open_ = false;
  std::map<std::uint64_t, Guest> guests_;
  std::uint64_t next_ = 0;
  std::uint32_t newest_ = 0;        // attempt that the peer has made, as far as it has come here
  std::uint32_t last_attempt_ = 0;  // that succeeded
};

}  // namespace p2p::engine
