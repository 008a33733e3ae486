// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Strangers, as many and as fast as wanted:
//
//   p2p_flood ADDRESS PORT HELD RATE silent|hello|half|noise
//
// connects RATE times a second and keeps the latest HELD connections; RATE 0: connects HELD times and stays.
// Says "ready" once it has connected HELD times, and for each line that it reads how often it has connected
// until now. Ends with its input.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <deque>
#include <iostream>
#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "wire/encode.h"

namespace p2p::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t number(std::string_view text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// "half": what opens a session with a peer without keys. It opens no channel.
std::string first_words(std::string_view kind) {
  if (kind == "hello") return to_string(wire::encode(wire::Hello{.incarnation = 1, .proof = 1}));
  if (kind == "half") {
    const wire::Introduction introduction{.note = "half", .transports = {{"tcp", ""}}};
    return to_string(wire::encode(wire::Hello{.incarnation = 1})) + to_string(wire::encode(introduction));
  }
  return kind == "noise" ? std::string(100, 'x') : std::string();
}

class Flood {
 public:
  Flood(const char* address, std::uint16_t port, std::size_t held, std::string words)
      : held_(held), words_(std::move(words)) {
    to_.sin_family = AF_INET;
    to_.sin_port = htons(port);
    ::inet_pton(AF_INET, address, &to_.sin_addr);
  }

  std::uint64_t made() const { return made_; }

  void connect() {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return;
    // A reset leaves no port behind that waits.
    const linger now{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    ++made_;
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to_), sizeof to_) != 0 && errno != EINPROGRESS)
      return;
    if (!words_.empty()) (void)::send(fd.get(), words_.data(), words_.size(), MSG_NOSIGNAL);
    open_.push_back(std::move(fd));
    if (open_.size() > held_) open_.pop_front();
  }

 private:
  const std::size_t held_;
  const std::string words_;
  sockaddr_in to_{};
  std::deque<UniqueFd> open_;
  std::uint64_t made_ = 0;
};

// False at the end of the input.
bool answer(const Flood& flood) {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (::poll(&input, 1, 1) <= 0) return true;
  std::string line;
  if (!std::getline(std::cin, line)) return false;
  std::cout << flood.made() << std::endl;
  return true;
}

void raise_descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int run(char** words) {
  raise_descriptor_limit();
  const std::uint64_t held = number(words[3]);
  const std::uint64_t rate = number(words[4]);
  Flood flood(words[1], static_cast<std::uint16_t>(number(words[2])), held, first_words(words[5]));
  const auto start = Clock::now();
  bool ready = false;
  do {
    const auto past = std::chrono::duration<double>(Clock::now() - start).count();
    const auto due = rate == 0 ? held : static_cast<std::uint64_t>(past * static_cast<double>(rate));
    // What a slow machine could not do is not made up for in one go.
    for (int i = 0; flood.made() < due && i != 1000; ++i) flood.connect();
    if (!ready && flood.made() >= held) {
      ready = true;
      std::cout << "ready" << std::endl;
    }
  } while (answer(flood));
  return 0;
}

}  // namespace
}  // namespace p2p::testing

int main(int count, char** words) { return count == 6 ? p2p::testing::run(words) : 2; }
