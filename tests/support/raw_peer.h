// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "transport/transport.h"
#include "wire/decode.h"
#include "wire/encode.h"

namespace p2p::testing {

/// A peer that shakes hands as it should and then says whatever it is told. Every wait is bounded.
class RawPeer {
 public:
  static constexpr Incarnation kIncarnation = 77;
  static constexpr std::chrono::seconds kPatience{20};

  explicit RawPeer(UniqueFd socket) : socket_(std::move(socket)) {}

  /// Dials a port of 127.0.0.1.
  static RawPeer dial(std::uint16_t port) {
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in address = loopback(port);
    static_cast<void>(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address));
    await(socket.get(), POLLOUT, Clock::now() + kPatience);  // a signal leaves a connect under way
    return RawPeer(std::move(socket));
  }

  /// Both sides of the handshake, without keys; `names` are the transports that it can use. The peer's hello
  /// and introduction; false if they did not come.
  bool shake_hands(Role role, const std::vector<std::string>& names) {
    wire::Introduction introduction{.note = "raw", .transports = {}};
    for (const std::string& name : names) introduction.transports.push_back({name, ""});
    const auto hello = [this] {
      auto came = next();
      if (!came || !std::holds_alternative<wire::Hello>(*came)) return false;
      incarnation_ = std::get<wire::Hello>(*came).incarnation;
      return true;
    };
    if (role == Role::kAcceptor && !hello()) return false;
    say(wire::Hello{.incarnation = kIncarnation});
    if (role == Role::kConnector && !hello()) return false;
    say(introduction);
    const auto came = next();
    return came && std::holds_alternative<wire::Introduction>(*came);
  }

  /// What the other side sends without a wait is taken meanwhile, so that nobody waits for nobody. False once
  /// it has closed.
  bool say(const wire::Message& message) { return say(ByteView(wire::encode(message))); }

  /// The same of a message that travels as a word.
  bool say_message(const wire::Message& message) {
    const Bytes frame = wire::encode(message);
    const bool said = say_words(said_, heard_, frame);
    said_ += frame.size();
    return said;
  }

  /// A block of words, as they are numbered by the byte.
  bool say_words(std::uint64_t offset, std::uint64_t acknowledged, ByteView frames) {
    wire::MessageBlock words;
    ByteWriter writer(words.block);
    writer.put(offset);
    writer.put(acknowledged);
    writer.put(std::uint8_t{0});
    writer.put(frames);
    return say(words);
  }

  bool say(ByteView bytes) {
    const auto deadline = Clock::now() + kPatience;
    while (!bytes.empty() && Clock::now() < deadline) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) bytes = bytes.subspan(static_cast<std::size_t>(sent));
      if (sent >= 0 || errno == EINTR) continue;
      if (errno != EAGAIN) return false;
      if (!wait(POLLIN | POLLOUT, deadline) || !take()) return false;
    }
    return bytes.empty();
  }

  /// The next message, out of its block if it is a word; nothing once the other side has closed, or when it
  /// says nothing.
  std::optional<wire::Message> next(std::chrono::milliseconds patience = kPatience) {
    const auto deadline = Clock::now() + patience;
    while (true) {
      if (auto word = words_.next(); word && *word) return std::move(**word);
      auto message = reader_.next();
      if (!message) return std::nullopt;
      if (*message && std::holds_alternative<wire::MessageBlock>(**message)) {
        hear(std::get<wire::MessageBlock>(**message));
        continue;
      }
      if (*message) return std::move(**message);
      if (ended_ || !wait(POLLIN, deadline) || !take()) return std::nullopt;
    }
  }

  /// The next message of type T; others are dropped.
  template <class T>
  std::optional<T> next_of(std::chrono::milliseconds patience = kPatience) {
    const auto deadline = Clock::now() + patience;
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      auto message = next(std::max(left, std::chrono::milliseconds(0)));
      if (!message) return std::nullopt;
      if (auto* wanted = std::get_if<T>(&*message)) return std::move(*wanted);
    }
  }

  /// The other side has closed, or does within the patience.
  bool dropped() {
    while (next()) {
    }
    return ended_;
  }

  /// Whether one of `events` came in time; signals (a fuzzer's alarm) are no event.
  static bool await(int fd, short events, std::chrono::steady_clock::time_point deadline) {
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      pollfd watched{fd, events, 0};
      const int ready = ::poll(&watched, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
      if (ready >= 0 || errno != EINTR) return ready > 0;
    }
  }

  Incarnation incarnation() const { return incarnation_; }  ///< the other side's
  int fd() const { return socket_.get(); }

 private:
  using Clock = std::chrono::steady_clock;

  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  bool wait(short events, Clock::time_point deadline) const { return await(socket_.get(), events, deadline); }

  void hear(const wire::MessageBlock& words) {
    constexpr std::size_t kHeadBytes = 8 + 8 + 1;
    const ByteView frames = ByteView(words.block).subspan(std::min(kHeadBytes, words.block.size()));
    words_.feed(frames);
    heard_ += frames.size();
  }

  // False at the end.
  bool take() {
    std::array<std::byte, 16384> buffer{};
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got > 0) reader_.feed(ByteView(buffer.data(), static_cast<std::size_t>(got)));
    if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) return true;
    ended_ = true;
    return false;
  }

  UniqueFd socket_;
  wire::FrameReader reader_{wire::kMaxFrameBytes};
  wire::FrameReader words_{wire::kMaxFrameBytes};
  std::uint64_t said_ = 0;   // bytes of words
  std::uint64_t heard_ = 0;  // likewise
  Incarnation incarnation_ = 0;
  bool ended_ = false;
};

}  // namespace p2p::testing
