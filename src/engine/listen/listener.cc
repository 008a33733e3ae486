// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/listen/listener.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/descriptor_table.h"
#include "base/error.h"
#include "base/log.h"
#include "drivers/socket/socket.h"
#include "wire/encode.h"
#include "wire/messages.h"

namespace p2p::engine {
namespace {

constexpr int kBacklog = 1024;

// Connections accepted for one event, before other events get their turn.
constexpr int kAcceptsPerEvent = 64;

// Strangers that are closed at most to accept one connection when descriptors are scarce.
constexpr int kMostEvicted = 4;

// How long nothing is accepted when there is no descriptor to accept it with.
constexpr std::chrono::milliseconds kPause{100};

}  // namespace

Listener::Listener(Reactor& reactor, Settings settings, Welcome welcome)
    : reactor_(reactor), settings_(settings), welcome_(std::move(welcome)), strangers_(settings.strangers) {}

Result<socket::Address> Listener::open(const socket::Address& address) {
  auto opened = socket::open_listener(address, kBacklog);
  if (!opened) return tl::unexpected(opened.error());
  auto bound = socket::local_address(opened->get());
  if (bound) sockets_.push_back(std::move(*opened));
  return bound;
}

void Listener::start() {
  for (const UniqueFd& one : sockets_) watch(one.get());
}

void Listener::watch(int listener) {
  const Status watched =
      reactor_.watch(listener, EPOLLIN, [this, listener](std::uint32_t) { accept_some(listener); });
  if (!watched) log(LogLevel::kError, "{}", watched.error().message);
}

void Listener::close() {
  closed_ = true;
  for (const UniqueFd& one : sockets_) reactor_.unwatch(one.get());
  sockets_.clear();  // or whoever dials waits for an answer for as long as a handle keeps this object
  while (strangers_.drop_one()) {
  }
}

void Listener::accept_some(int listener) {
  for (int i = 0; i != kAcceptsPerEvent && !paused_; ++i) {
    auto socket = socket::try_accept(listener);
    if (!socket) {
      // Mostly no descriptor or no memory. The connection stays in the backlog, and the event would come
      // again at once: stop watching for a while.
      strangers_.drop_one();
      shortages_.log("{}; nothing is accepted for {} ms", socket.error().message, kPause.count());
      return pause();
    }
    if (!*socket) return;
    const bool scarce = is_scarce(*socket);
    if (scarce && !make_descriptor_free(*socket)) return;
    receive(std::move(*socket));
    // What was closed may need a turn of the reactor until its descriptor is free.
    if (scarce) return;
  }
}

/// The kernel gives the lowest free number, so a high one means that few are left.
bool Listener::is_scarce(const UniqueFd& newest) const {
  const std::size_t limit = descriptor_limit();
  return static_cast<std::size_t>(newest.get()) >= limit - std::min(settings_.spare_descriptors, limit / 2);
}

/// Closes a stranger and moves `newest` to the number that this frees; otherwise the next connection would
/// get that low number, and is_scarce would not see that descriptors are few. If the application takes the
/// number first, another stranger is closed, up to kMostEvicted.
bool Listener::make_descriptor_free(UniqueFd& newest) {
  bool lower = false;
  int evicted = 0;
  while (!lower && evicted != kMostEvicted && strangers_.drop_one()) {
    ++evicted;
    UniqueFd low = UniqueFd::of(::fcntl, newest.get(), F_DUPFD_CLOEXEC, 0);
    lower = low && low.get() < newest.get();
    if (lower) newest = std::move(low);
  }
  shortages_.log(
      "descriptors are scarce: {} of {} are left to the application; {}", settings_.spare_descriptors,
      descriptor_limit(),
      evicted != 0 ? "connections that have not proven themselves are closed" : "nothing is accepted");
  if (!lower) strangers_.count_refused();
  if (evicted == 0) pause();
  return lower;
}

void Listener::receive(UniqueFd socket) {
  const auto peer = socket::peer_address(socket.get());
  if (!peer) return;
  const std::uint64_t refused = strangers_.refused();
  const Id id = strangers_.add(peer->text(), Strangers::Clock::now(), [this](Id one) { release(one); });
  if (strangers_.refused() != refused) {
    crowds_.log("{} connections have not proven themselves, the most that are kept: the oldest are closed",
                strangers_.size());
  }
  guests_.emplace(id, Guest{std::move(socket)});
  look(id, 0);  // mostly its first bytes are there already
}

void Listener::wait_for(Id id, std::size_t bytes) {
  Guest& guest = guests_.at(id);
  socket::set_receive_low_water(guest.fd.get(), static_cast<int>(bytes));
  if (guest.timer) return;
  const Status watched = reactor_.watch(guest.fd.get(), EPOLLIN | EPOLLRDHUP,
                                        [this, id](std::uint32_t events) { look(id, events); });
  if (!watched) return refuse(id, "it cannot be watched");
  guest.timer = reactor_.after(settings_.patience, [this, id] { refuse(id, "it said too little in time"); });
}

void Listener::look(Id id, std::uint32_t events) {
  const int fd = guests_.at(id).fd.get();
  std::array<std::byte, FirstBytes::kMost> bytes{};
  const auto peeked = socket::try_peek(fd, bytes);
  if (!peeked) return refuse(id, "it failed");
  FirstBytes first = FirstBytes::read(ByteView(bytes).first(peeked->bytes));
  switch (first.kind) {
    case FirstBytes::Kind::kUndecided:
      if (peeked->ended || (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
        return refuse(id, "it ended before it said what it is");
      }
      return wait_for(id, first.needed);
    case FirstBytes::Kind::kForeign: return refuse(id, "it speaks another protocol");
    case FirstBytes::Kind::kControl:
      return strangers_.spoke(id, Strangers::Clock::now(), welcome_(release(id), id));
    case FirstBytes::Kind::kStream:
    case FirstBytes::Kind::kResume: return take_named(id, first);
  }
}

/// Stops watching a guest and gives its socket to the caller; none if it is not there.
UniqueFd Listener::release(Id id) {
  auto guest = guests_.extract(id);
  if (guest.empty()) return UniqueFd();
  UniqueFd fd = std::move(guest.mapped().fd);
  if (!guest.mapped().timer) return fd;
  reactor_.cancel(*guest.mapped().timer);
  reactor_.unwatch(fd.get());
  socket::set_receive_low_water(fd.get(), 1);
  return fd;
}

void Listener::refuse(Id id, const char* why) {
  refusals_.log("a stranger's connection is closed: {}", why);
  strangers_.remove(id);
  strangers_.count_refused();
  release(id);
}

/// For connections that name what awaits them. A peer whose session is not known here is told so: it would
/// dial again otherwise.
void Listener::take_named(Id id, const FirstBytes& first) {
  strangers_.remove(id);
  UniqueFd socket = release(id);
  if (hand_on(first.token, socket)) return;
  refusals_.log("a stranger's connection is closed: it names a channel or session that is not awaited");
  strangers_.count_refused();
  if (first.kind != FirstBytes::Kind::kResume) return;
  std::array<std::byte, wire::kStrangerFrameBytes> rest{};  // left unread, it would make close() send a reset
  (void)socket::try_receive(socket.get(), rest);
  (void)socket::try_send(socket.get(), wire::encode(wire::ResumeAnswer{}));
}

bool Listener::hand_on(const Token& token, UniqueFd& socket) {
  MutexLock lock(mutex_);
  const auto found = expected_.find(token);
  if (found == expected_.end()) return false;
  found->second(std::move(socket));
  return true;
}

void Listener::pause() {
  if (std::exchange(paused_, true)) return;
  for (const UniqueFd& one : sockets_) reactor_.change(one.get(), 0);
  reactor_.after(kPause, [this] {
    paused_ = false;
    if (closed_) return;
    for (const UniqueFd& one : sockets_) reactor_.change(one.get(), EPOLLIN);
  });
}

Result<std::uint16_t> Listener::open_at(const std::string& address) {
  if (closed_) return fail(ErrorCode::kCancelled, "listen on {}: the endpoint is closed", address);
  std::uint16_t port = 0;
  const auto wanted = socket::Address::parse(address, 0);
  if (!wanted) return tl::unexpected(wanted.error());
  for (const UniqueFd& one : sockets_) {
    const auto bound = socket::local_address(one.get());
    if (!bound) return tl::unexpected(bound.error());
    port = bound->port();
    if (bound->same_host(*wanted) || (bound->is_wildcard() && bound->family() == wanted->family()))
      return port;
  }
  socket::Address there = *wanted;
  there.set_port(port);
  const auto opened = open(there);
  if (!opened) return tl::unexpected(opened.error());
  watch(sockets_.back().get());
  if (paused_) reactor_.change(sockets_.back().get(), 0);
  return port;
}

void Listener::expect(const Token& token, Take take) {
  MutexLock lock(mutex_);
  expected_.insert_or_assign(token, std::move(take));
}

void Listener::forget(const Token& token) {
  MutexLock lock(mutex_);
  expected_.erase(token);
}

}  // namespace p2p::engine
