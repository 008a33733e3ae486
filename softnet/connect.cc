// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "softnet/connect.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "softnet/log.h"
#include "softnet/settings.h"

namespace softnet {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kMaxGuests = 64;

const sockaddr* generic(const sockaddr_in6& address) { return reinterpret_cast<const sockaddr*>(&address); }

/// A connection that is being made. Used by one thread at a time, the holder of the attempts' lock.
struct Attempt {
  UniqueFd socket;
  UniqueFd control;        // the first connection, if the habits want two
  Clock::time_point next;  // not before is the next step made
  Clock::time_point deadline;
  Greeting greeting;
  std::size_t sent = 0;
  Greeting answer;
  std::size_t heard = 0;
  bool connected = false;
};

/// Numbers are drawn at random: handles come from peers, who are not to name another's attempt.
struct Attempts {
  std::mutex mutex;
  std::map<std::uint64_t, Attempt> open;
};

Attempts& attempts() {
  static Attempts* const all = new Attempts;
  return *all;
}

bool same_host(const sockaddr_in6& one, const sockaddr_in6& other) {
  if (one.sin6_family != other.sin6_family) return false;
  if (one.sin6_family == AF_INET6)
    return std::memcmp(&one.sin6_addr, &other.sin6_addr, sizeof one.sin6_addr) == 0;
  const auto address_of = [](const sockaddr_in6& any) {
    return reinterpret_cast<const sockaddr_in*>(&any)->sin_addr.s_addr;
  };
  return address_of(one) == address_of(other);
}

/// Invalid with errno on failure.
UniqueFd dial(const Device& device, const Handle& handle) {
  UniqueFd socket = make_socket(handle.address);
  const int fd = socket.get();
  if (fd < 0) return {};
  // Leave by the device's own interface.
  if (device.address.sin6_family == handle.address.sin6_family &&
      ::bind(fd, generic(device.address), address_size(device.address)) != 0) {
    return {};
  }
  prepare_stream(fd);
  if (same_host(device.address, handle.address)) send_unpaced(fd);
  if (::connect(fd, generic(handle.address), address_size(handle.address)) != 0 && errno != EINPROGRESS)
    return {};
  return socket;
}

std::uint64_t begin(Attempts& all, const Device& device, const Handle& handle) {
  Attempt attempt;
  attempt.socket = dial(device, handle);
  if (attempt.socket.get() < 0) return 0;
  attempt.deadline = Clock::now() + settings().timeout;
  attempt.greeting.cookie = handle.cookie;
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) return 0;
  all.open.emplace(number, std::move(attempt));
  return number;
}

bool finish_connect(Attempt& attempt, int& code) {
  pollfd poll{attempt.socket.get(), POLLOUT, 0};
  if (::poll(&poll, 1, 0) <= 0) return false;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == 0) return attempt.connected = true;
  warn("connect: {}", reason(error));
  code = abi::kRemoteError;
  return false;
}

/// Sends or hears what can be now: its bytes, or kLost.
long exchange(Attempt& attempt) {
  if (attempt.sent != sizeof attempt.greeting) {
    auto* out = reinterpret_cast<std::byte*>(&attempt.greeting);
    iovec piece{out + attempt.sent, sizeof attempt.greeting - attempt.sent};
    const long moved = send_some(attempt.socket.get(), {&piece, 1});
    if (moved > 0) attempt.sent += static_cast<std::size_t>(moved);
    return moved;
  }
  auto* in = reinterpret_cast<std::byte*>(&attempt.answer);
  iovec piece{in + attempt.heard, sizeof attempt.answer - attempt.heard};
  const long moved = receive_some(attempt.socket.get(), {&piece, 1});
  if (moved > 0) attempt.heard += static_cast<std::size_t>(moved);
  return moved;
}

/// With the habit that accept blocks: each connection takes its time, and the control connection comes first.
bool takes_its_time(Attempt& attempt, const Device& device, const Handle& handle, int& code) {
  if (!settings().habits.accept_blocks || !attempt.connected) return false;
  const auto now = Clock::now();
  if (attempt.next == Clock::time_point{}) attempt.next = now + settings().delay;
  if (now < attempt.next) return true;
  if (attempt.control) return false;
  attempt.control = std::move(attempt.socket);
  attempt.socket = dial(device, handle);
  if (!attempt.socket) code = abi::kSystemError;
  attempt.connected = false;
  attempt.next = {};
  return true;
}

/// Returns true once the acceptor has answered; sets `code` if it never will. Where the caller was late the
/// answer may be there: only an attempt that gets no further is too late.
bool go_on(Attempt& attempt, const Device& device, const Handle& handle, int& code) {
  const bool tries = !settings().never_connect && (attempt.connected || finish_connect(attempt, code)) &&
                     !takes_its_time(attempt, device, handle, code);
  const long moved = tries ? exchange(attempt) : 0;
  if (moved == kLost) code = abi::kRemoteError;
  if (moved == 0 && code == abi::kSuccess && Clock::now() > attempt.deadline) {
    warn("connect: no answer within {} ms", settings().timeout.count());
    code = abi::kRemoteError;
  }
  if (attempt.heard != sizeof attempt.answer) return false;
  const bool same =
      attempt.answer.magic == Handle::kMagic && attempt.answer.cookie == attempt.greeting.cookie;
  if (!same) code = abi::kRemoteError;
  return same;
}

UniqueFd accept_one(int listener) {
  return UniqueFd::of(::accept4, listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

/// What a packet carries besides the headers of IPv4 and of TCP with its time stamps.
std::size_t packet_bytes(const Device& device) {
  constexpr int kHeaders = 52;
  return static_cast<std::size_t>(std::max(device.mtu - kHeaders, 1));
}

}  // namespace

/// The thread that GPUDirect-TCPX starts in the first accept. It knows the listener's socket by its number
/// and goes on when the listener was closed: then it takes the connections of whatever has that number next.
/// With the habit that accept blocks it takes two connections of a peer and waits for the second however
/// long; that the first is dead it finds out only then.
class AcceptThread {
 public:
  static std::shared_ptr<AcceptThread> start(int listener) {
    auto made = std::make_shared<AcceptThread>();
    made->thread_ = std::thread([made, listener] { made->run(listener); });
    return made;
  }

  UniqueFd take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(taken_, UniqueFd());
  }

  /// A peer broke off: with the habit that accept blocks the third is the end.
  void broke() {
    constexpr int kTries = 3;
    if (settings().habits.accept_blocks && ++broken_ == kTries) failed_ = ended_ = true;
  }
  bool failed() const { return failed_; }

  /// The accept has ended; with it the thread does.
  void end() {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
  }

  void forget() {
    if (thread_.joinable()) thread_.detach();
  }

 private:
  static constexpr int kLookEveryMs = 5;

  UniqueFd wait_for_one(int listener) const {
    while (!ended_) {
      pollfd poll{listener, POLLIN, 0};
      if (::poll(&poll, 1, kLookEveryMs) <= 0) continue;
      if ((poll.revents & POLLIN) == 0) {  // the number is nobody's now
        ::poll(nullptr, 0, kLookEveryMs);
        continue;
      }
      return accept_one(listener);
    }
    return {};
  }

  static bool is_dead(int control) {
    std::byte byte;
    return ::recv(control, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;  // it says nothing while it lives
  }

  void run(int listener) {
    UniqueFd control;
    while (!ended_) {
      if (settings().habits.accept_blocks) control = wait_for_one(listener);
      UniqueFd guest = wait_for_one(listener);
      if (control && is_dead(control.get())) {
        broke();
        continue;
      }
      while (!ended_ && has_guest()) ::poll(nullptr, 0, kLookEveryMs);
      const std::lock_guard lock(mutex_);
      taken_ = std::move(guest);
    }
  }

  bool has_guest() {
    const std::lock_guard lock(mutex_);
    return static_cast<bool>(taken_);
  }

  std::mutex mutex_;
  UniqueFd taken_;  // the next guest
  std::atomic<bool> ended_{false};
  std::atomic<bool> failed_{false};
  std::atomic<int> broken_{0};
  std::thread thread_;
};

std::unique_ptr<Listener> Listener::open(const Device& device, Handle& handle) {
  auto listener = std::make_unique<Listener>();
  listener->packet_bytes_ = packet_bytes(device);
  listener->socket_ = make_socket(device.address);
  const int fd = listener->socket_.get();
  handle = {};
  socklen_t size = sizeof handle.address;
  if (fd < 0 || ::bind(fd, generic(device.address), address_size(device.address)) != 0 ||
      ::listen(fd, 64) != 0 || ::getsockname(fd, reinterpret_cast<sockaddr*>(&handle.address), &size) != 0 ||
      ::getrandom(&listener->cookie_, sizeof listener->cookie_, 0) != sizeof listener->cookie_) {
    warn("listen on {}: {}", device.name, reason(errno));
    return nullptr;
  }
  handle.cookie = listener->cookie_;
  return listener;
}

std::unique_ptr<RecvComm> Listener::poll(int& code) {
  const std::lock_guard lock(mutex_);
  if (settings().never_accept) return nullptr;
  while (UniqueFd socket = take_guest()) {
    prepare_stream(socket.get());
    // Who means it speaks at once: of the silent ones the oldest makes room.
    if (guests_.size() == kMaxGuests) guests_.erase(guests_.begin());
    guests_.push_back({std::move(socket), Clock::now() + settings().timeout, {}, 0});
  }
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    const Verdict verdict = hear(*guest);
    if (verdict == Verdict::kWait) {
      ++guest;
      continue;
    }
    UniqueFd socket = std::move(guest->socket);
    guest = guests_.erase(guest);
    if (verdict == Verdict::kLeave) {
      if (thread_) thread_->broke();
      continue;
    }
    Greeting answer{Handle::kMagic, cookie_};
    iovec piece{&answer, sizeof answer};
    // The first 16 bytes of an empty socket buffer always fit.
    if (send_some(socket.get(), {&piece, 1}) != static_cast<long>(sizeof answer)) continue;
    auto comm = std::make_unique<RecvComm>(std::move(socket), packet_bytes_);
    if (thread_) thread_->end();
    if (comm->ready()) return comm;
    warn("accept: no memory for the pool");
  }
  if (thread_ && thread_->failed()) {
    thread_->end();
    warn("accept: three peers broke off");
    code = abi::kInternalError;
  }
  return nullptr;
}

Listener::~Listener() {
  if (thread_) thread_->forget();
}

UniqueFd Listener::take_guest() {
  if (!settings().habits.accept_thread) return accept_one(socket_.get());
  if (!thread_) thread_ = AcceptThread::start(socket_.get());
  return thread_->take();
}

Listener::Verdict Listener::hear(Guest& guest) const {
  iovec piece{reinterpret_cast<std::byte*>(&guest.greeting) + guest.bytes,
              sizeof guest.greeting - guest.bytes};
  const long moved = receive_some(guest.socket.get(), {&piece, 1});
  if (moved == kLost) return Verdict::kLeave;
  guest.bytes += static_cast<std::size_t>(moved);
  if (guest.bytes != sizeof guest.greeting) {
    return moved == 0 && Clock::now() > guest.deadline ? Verdict::kLeave : Verdict::kWait;
  }
  const bool known = guest.greeting.magic == Handle::kMagic && guest.greeting.cookie == cookie_;
  return known ? Verdict::kWelcome : Verdict::kLeave;
}

int poll_connect(const Device& device, Handle& handle, std::unique_ptr<SendComm>& comm) {
  if (handle.magic != Handle::kMagic) {
    warn("connect: the handle is not one of ours");
    return abi::kInvalidArgument;
  }
  Attempts& all = attempts();
  const std::lock_guard lock(all.mutex);
  if (handle.attempt == 0) {
    handle.attempt = begin(all, device, handle);
    if (handle.attempt == 0) {
      warn("connect from {}: {}", device.name, reason(errno));
      return abi::kSystemError;
    }
  }
  const auto found = all.open.find(handle.attempt);
  if (found == all.open.end()) {
    warn("connect: this attempt is over");
    return abi::kRemoteError;
  }
  int code = abi::kSuccess;
  if (go_on(found->second, device, handle, code))
    comm = std::make_unique<SendComm>(std::move(found->second.socket));
  if (comm && !comm->ready()) {
    comm.reset();
    code = abi::kUnhandledCudaError;
  }
  if (comm || code != abi::kSuccess) all.open.erase(found);
  return code;
}

void end_stale_attempts() {
  Attempts& all = attempts();
  const std::lock_guard lock(all.mutex);
  const auto long_ago =
      Clock::now() - settings().timeout;  // a host that is only late ends its attempt itself
  std::erase_if(all.open, [&](const auto& entry) { return entry.second.deadline < long_ago; });
}

}  // namespace softnet
