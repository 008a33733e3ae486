// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace p2p::testing {

/// Stands between those who dial its port of 127.0.0.1 and another port there, and resets connections, as
/// firewalls and address translators do: both ends see an RST. Any thread.
class Middlebox {
 public:
  using Said = std::vector<std::byte>;

  explicit Middlebox(std::uint16_t target) : target_(target) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_.get(), 64) != 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      listener_.close();
    }
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~Middlebox() {
    tell([this] { over_ = true; });
    thread_.join();
  }
  Middlebox(const Middlebox&) = delete;
  Middlebox& operator=(const Middlebox&) = delete;

  std::uint16_t port() const { return port_; }

  /// Connections of sessions, of channels (streams of `tcp`), or all.
  enum class What { kSessions, kStreams, kAll };

  /// Resets those that are there. How many there were.
  int reset(What what = What::kSessions) {
    int count = 0;
    tell([&] {
      for (const auto& flow : flows_) {
        const bool spared = what != What::kAll && flow->is_stream() != (what == What::kStreams);
        if (flow->gone || flow->swallowed || spared) continue;
        ++count;
        flow->reset();
      }
    });
    return count;
  }

  /// Each of these resets one stream, that which first has carried so many bytes more from now on.
  void reset_after(const std::vector<std::uint64_t>& bytes) {
    tell([&] {
      due_.insert(due_.end(), bytes.begin(), bytes.end());
      carried_ = 0;
    });
  }

  /// Resets streams that carry anything from now on; or no more.
  void block(bool on) {
    tell([&] { blocks_ = on; });
  }

  /// Lets streams that are dialled from now on come, and their words vanish; or no more; those stay as they
  /// are.
  void swallow(bool on) {
    tell([&] { swallows_ = on; });
  }
  int swallowed() {
    int count = 0;
    tell([&] {
      for (const auto& flow : flows_) count += flow->swallowed ? 1 : 0;
    });
    return count;
  }

  /// Those who dial wait from here on; or no more.
  void hold(bool on) {
    tell([&] { held_ = on; });
  }

  /// Somebody dials while all are held.
  bool somebody_waits() {
    bool waits = false;
    tell([&] {
      pollfd watched{listener_.get(), POLLIN, 0};
      waits = held_ && ::poll(&watched, 1, 0) > 0;
    });
    return waits;
  }

  /// Nobody listens any more.
  void refuse() {
    tell([this] { listener_.close(); });
  }

  /// Where new connections go from here on.
  void lead_to(std::uint16_t target) {
    tell([&] { target_ = target; });
  }

  /// Of every connection so far, the first of what the side that dialled has said.
  std::vector<Said> said() {
    std::vector<Said> said;
    tell([&] {
      for (const auto& flow : flows_) said.push_back(flow->said);
    });
    return said;
  }

 private:
  static constexpr std::size_t kMostKept = 4096;

  class Descriptor {
   public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}
    ~Descriptor() { close(); }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return fd_; }
    void close(int next = -1) {
      if (fd_ >= 0) ::close(fd_);
      fd_ = next;
    }

   private:
    int fd_;
  };

  struct Flow {
    std::array<Descriptor, 2> ends;  // of who dialled, and of whom was dialled
    std::array<Said, 2> waiting;     // from each of them
    std::array<bool, 2> ended{};     // each of them sends nothing more
    Said said;
    bool gone = false;
    bool swallowed = false;

    bool is_stream() const { return said.size() >= 4 && std::memcmp(said.data(), "p2pt", 4) == 0; }

    void reset() {
      const linger now{1, 0};
      for (Descriptor& end : ends) ::setsockopt(end.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
      close();
    }

    void close() {
      for (Descriptor& end : ends) end.close();
      gone = true;
    }
  };

  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  template <class Change>
  void tell(const Change& change) {
    const std::lock_guard lock(mutex_);
    change();
    ::eventfd_write(wake_.get(), 1);
  }

  void run();
  void take_one();
  void move(Flow& flow, std::size_t from);
  bool lets_pass(Flow& flow, std::size_t bytes);

  Descriptor listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const Descriptor wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::uint16_t port_ = 0;
  std::mutex mutex_;
  std::uint16_t target_;
  std::vector<std::shared_ptr<Flow>> flows_;
  std::deque<std::uint64_t> due_;
  std::uint64_t carried_ = 0;  // by streams, since the last one was due
  bool swallows_ = false;
  bool blocks_ = false;
  bool held_ = false;
  bool over_ = false;
  std::thread thread_;  // uses all the others
};

}  // namespace p2p::testing
