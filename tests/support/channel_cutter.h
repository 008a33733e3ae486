// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <sys/eventfd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "support/sockets.h"

namespace p2p::testing {

/// Carries connections from a port of 127.0.0.2 to the same port of 127.0.0.1, and resets some of them, as
/// firewalls and address translators do: both ends see an RST. The first connection, a session's, is left
/// alone.
class ChannelCutter {
 public:
  static constexpr const char* kHost = "127.0.0.2";

  explicit ChannelCutter(std::uint16_t port)
      : listener_(listen_at(port)), thread_([this, port] { run(port); }) {}
  ~ChannelCutter() {
    ::eventfd_write(stop_.fd(), 1);
    thread_.join();
  }
  ChannelCutter(const ChannelCutter&) = delete;
  ChannelCutter& operator=(const ChannelCutter&) = delete;

  /// Each of these resets one connection, that which first has carried so many bytes more from now on.
  void reset_after(const std::vector<std::uint64_t>& bytes) {
    const std::lock_guard lock(mutex_);
    due_.insert(due_.end(), bytes.begin(), bytes.end());
    carried_ = 0;
  }

  /// Resets all that are there now.
  void cut() {
    {
      const std::lock_guard lock(mutex_);
      cuts_ = true;
    }
    ::eventfd_write(wake_.fd(), 1);
  }

  /// Resets those that carry anything from now on, and all that are dialled, or no more.
  void block(bool blocks) {
    const std::lock_guard lock(mutex_);
    blocks_ = blocks;
  }

  /// Takes those that are dialled from now on and never says a word, or no more; those stay as they are.
  void swallow(bool swallows) {
    const std::lock_guard lock(mutex_);
    swallows_ = swallows;
  }
  std::size_t swallowed() const {
    const std::lock_guard lock(mutex_);
    return swallowed_.size();
  }

 private:
  static constexpr std::size_t kBuffer = 65536;

  /// One direction.
  struct Way {
    int from;
    int to;
    std::array<std::byte, kBuffer> bytes{};
    std::size_t begin = 0;
    std::size_t end = 0;
    bool over = false;  // nothing comes any more

    pollfd wish() const {
      if (begin != end) return {to, POLLOUT, 0};
      return {over ? -1 : from, POLLIN, 0};
    }
  };

  struct Flow {
    Socket dialler;
    Socket dialled;
    std::array<Way, 2> ways;
    bool spared;  // the session's
    bool dead = false;
  };

  static Socket listen_at(std::uint16_t port);
  bool passes(std::size_t bytes);
  static void reset(Flow& flow);
  bool swallow(Socket& dialler);
  void add(std::uint16_t target);
  void move(Flow& flow, Way& way);
  void cut_if_asked();
  void run(std::uint16_t target);

  const Socket listener_;
  const Socket stop_{::eventfd(0, EFD_CLOEXEC)};
  const Socket wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  mutable std::mutex mutex_;
  std::deque<std::uint64_t> due_;
  std::uint64_t carried_ = 0;
  bool blocks_ = false;
  bool cuts_ = false;
  bool swallows_ = false;
  std::vector<Socket> swallowed_;
  std::vector<std::unique_ptr<Flow>> flows_;  // the thread's, as the next one is
  bool dialled_ = false;
  std::thread thread_;  // uses all the others
};

}  // namespace p2p::testing
