// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <condition_variable>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/session.h"
#include "wire/decode.h"
#include "wire/encode.h"

/// Two ends for tests of sessions: one that is a Session and notes what it reports, one that is a bare
/// socket.
namespace p2p::engine {

using Clock = std::chrono::steady_clock;

inline constexpr std::chrono::seconds kPatience{30};

inline Bytes key(std::string_view text) {
  const ByteView view = as_bytes(text);
  return {view.begin(), view.end()};
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

/// A listening socket on the loopback address.
class Listener {
 public:
  Listener() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_.get(), 16), 0);
    EXPECT_EQ(getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  std::uint16_t port() const { return port_; }
  UniqueFd accept() { return UniqueFd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
  void close() { fd_.reset(); }

 private:
  UniqueFd fd_;
  std::uint16_t port_ = 0;
};

/// What a peer that is not ours does by hand, over a blocking socket.
struct Stranger {
  UniqueFd fd;
  wire::FrameReader reader;

  explicit Stranger(UniqueFd socket) : fd(std::move(socket)) {
    const timeval limit{30, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }
  void send(ByteView bytes) { (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void send(const wire::Message& message) { send(ByteView(wire::encode(message))); }

  /// The next message; nothing at the end of the stream.
  std::optional<wire::Message> next() {
    for (;;) {
      auto message = reader.next();
      EXPECT_TRUE(message);
      if (!message || *message) return message ? *message : std::nullopt;
      std::array<std::byte, 4096> buffer{};
      const ssize_t got = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
      if (got <= 0) return std::nullopt;
      reader.feed(ByteView(buffer.data(), static_cast<std::size_t>(got)));
    }
  }
  /// True if the other side closed before the patience ran out.
  bool dropped() {
    std::array<std::byte, 4096> buffer{};
    for (;;) {
      const ssize_t got = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
      if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
      if (got < 0) return false;
    }
  }
};

inline std::pair<UniqueFd, UniqueFd> socket_pair() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

inline SessionConfig config(std::string_view key_text, Incarnation incarnation = 1) {
  SessionConfig config;
  config.key = key(key_text);
  config.incarnation = incarnation;
  config.introduction.note = "note " + std::to_string(incarnation);
  return config;
}

class SessionTest : public testing::Test {
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
  Listener listener_;
};

}  // namespace p2p::engine
