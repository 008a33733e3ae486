// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/session/session.h"
#include "support/stranger.h"

/// Two ends for tests of sessions: one that is a Session and notes what it reports, one that is a bare
/// socket.
namespace p2p::engine {

using Clock = std::chrono::steady_clock;

inline constexpr std::chrono::seconds kPatience{30};

/// A key without a name; none if the text is empty.
inline std::shared_ptr<const crypto::Credentials> key(std::string_view text, std::string name = "") {
  if (text.empty()) return nullptr;
  const ByteView view = as_bytes(text);
  return crypto::Credentials::of_keys({{std::move(name), Bytes(view.begin(), view.end())}}).value();
}

/// A session and what it reported.
class Side {
 public:
  Session::Handlers handlers() {
    Session::Handlers handlers;
    handlers.opened = [this](const SessionPeer& peer) { record([&] { peer_ = peer; }); };
    handlers.message = [this](wire::Message message) {
      record([&] {
        if (std::holds_alternative<wire::Heartbeat>(message)) {
          ++heartbeats_;
        } else {
          messages_.push_back(std::move(message));
        }
      });
    };
    handlers.closed = [this](const Error& error) {
      record([&] {
        closed_ = error;
        ++times_closed_;
      });
    };
    return handlers;
  }

  bool wait_open() {
    return wait([&] { return peer_ || closed_; }) && peer_;
  }
  bool wait_messages(std::size_t count) {
    return wait([&] { return messages_.size() >= count || closed_; }) && messages_.size() >= count;
  }
  bool wait_heartbeats(int count) {
    return wait([&] { return heartbeats_ >= count || closed_; }) && heartbeats_ >= count;
  }
  /// The error it closed with; its message is "still open" if it did not.
  Error wait_closed() {
    if (!wait([&] { return closed_.has_value(); })) return {ErrorCode::kSystem, "still open"};
    std::lock_guard lock(mutex_);
    return *closed_;
  }
  bool open_still() {
    std::lock_guard lock(mutex_);
    return !closed_;
  }
  SessionPeer peer() {
    std::lock_guard lock(mutex_);
    return *peer_;
  }
  std::vector<wire::Message> messages() {
    std::lock_guard lock(mutex_);
    return messages_;
  }
  int times_closed() {
    std::lock_guard lock(mutex_);
    return times_closed_;
  }
  bool ever_opened() {
    std::lock_guard lock(mutex_);
    return peer_.has_value();
  }

  std::shared_ptr<Session> session;

 private:
  template <class Change>
  void record(Change change) {
    std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  template <class Until>
  bool wait(Until until) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, until);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<SessionPeer> peer_;
  std::optional<Error> closed_;
  std::vector<wire::Message> messages_;
  int heartbeats_ = 0;
  int times_closed_ = 0;
};

inline SessionConfig config(std::string_view key_text, Incarnation incarnation = 1) {
  SessionConfig config;
  config.credentials = key(key_text);
  config.incarnation = incarnation;
  config.introduction.note = "note " + std::to_string(incarnation);
  return config;
}

class SessionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = Reactor::start();
    ASSERT_TRUE(started) << started.error().message;
    reactor_ = std::move(*started);
  }

  /// Handlers point at the sides; nothing runs any more when those go.
  void end(std::initializer_list<Side*> sides) {
    for (Side* side : sides) side->session.reset();
    reactor_.reset();
  }

  void dial(Side& side, std::uint16_t port, SessionConfig config, Clock::duration limit = kPatience,
            std::string host = "127.0.0.1") {
    side.session = Session::dial(*reactor_, std::move(host), port, std::move(config), side.handlers(),
                                 Clock::now() + limit);
  }
  void accept(Side& side, UniqueFd socket, SessionConfig config, Clock::duration limit = kPatience) {
    side.session = Session::accept(*reactor_, std::move(socket), std::move(config), side.handlers(),
                                   Clock::now() + limit);
  }
  /// Both sides over the loopback interface.
  void connect(Side& connector, SessionConfig connecting, Side& acceptor, SessionConfig accepting) {
    dial(connector, listener_.port(), std::move(connecting));
    accept(acceptor, listener_.accept(), std::move(accepting));
  }

  std::unique_ptr<Reactor> reactor_;
  BareListener listener_;
};

}  // namespace p2p::engine
