// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/loop/dialer.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <utility>

#include "base/error.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "drivers/socket/dial.h"
#include "p2p/host_port.h"

namespace p2p::engine {

struct Dialer::Resolution {
  UniqueFd ready;
  Mutex mutex;
  Result<std::vector<socket::Address>> answers P2P_GUARDED_BY(mutex);
};

namespace {

/// A host that says no is not a broken system; nor is one out of reach, which says nothing of who runs there.
Error dial_error(const std::string& what, int error_number) {
  Error error = system_error(what, error_number);
  if (error_number == ECONNREFUSED) {
    error.code = ErrorCode::kUnavailable;
  } else if (error_number == EHOSTUNREACH || error_number == ENETUNREACH) {
    error.code = ErrorCode::kPeerGone;
  } else if (error_number == ETIMEDOUT) {
    error.code = ErrorCode::kTimedOut;
  }
  return error;
}

}  // namespace

Dialer::Dialer(Reactor& reactor, std::string host, std::uint16_t port)
    : reactor_(reactor), host_(std::move(host)), port_(port) {}

Dialer::~Dialer() = default;

std::string Dialer::describe() const {
  return resolution_ ? fmt::format("look up {}", host_) : fmt::format("connect to {}:{}", host_, port_);
}

void Dialer::start(Done done) {
  done_ = std::move(done);
  const Status read = read_host();
  if (read && answers_.empty()) return look_up();
  reactor_.post([self = shared_from_this(), read] {
    if (!read) return self->finish(tl::unexpected(read.error()));
    self->try_next();
  });
}

/// A numeric host is an answer at once.
Status Dialer::read_host() {
  auto place = HostPort::parse(host_);
  if (!place) return tl::unexpected(place.error());
  if (const auto port = place->port_or(port_); !port) return tl::unexpected(port.error());
  host_ = place->host;
  if (!place->is_numeric()) return {};
  const auto address = socket::Address::parse(host_, port_);
  if (!address) return tl::unexpected(address.error());
  answers_.push_back(*address);
  return address->check_scope();
}

void Dialer::look_up() {
  auto resolution = std::make_shared<Resolution>();
  resolution->ready = UniqueFd::of(::eventfd, 0, EFD_CLOEXEC | EFD_NONBLOCK);
  const auto resolve = [resolution, host = host_, port = port_] {
    auto answers = socket::addresses_of(host, port);
    MutexLock lock(resolution->mutex);
    resolution->answers = std::move(answers);
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(resolution->ready.get(), &one, sizeof one);
  };
  const auto taken = [self = shared_from_this()](std::uint32_t) { self->take_answers(); };
  Status watched = reactor_.watch(resolution->ready.get(), EPOLLIN, taken);
  if (watched) {
    resolution_ = resolution;
    auto thread = start_thread("p2p-look-up", resolve);
    if (thread) return thread->detach();
    watched = tl::unexpected(thread.error());
  }
  reactor_.post(
      [self = shared_from_this(), error = watched.error()] { self->finish(tl::unexpected(error)); });
}

void Dialer::take_answers() {
  const auto resolution = std::exchange(resolution_, nullptr);
  reactor_.unwatch(resolution->ready.get());
  {
    MutexLock lock(resolution->mutex);
    if (resolution->answers) {
      answers_ = std::move(*resolution->answers);
    } else {
      failure_ = Error{ErrorCode::kNotFound, resolution->answers.error().message};
    }
  }
  try_next();
}

void Dialer::try_next() {
  if (!done_) return;
  while (next_ < answers_.size()) {
    const socket::Address& answer = answers_[next_++];
    socket_ = UniqueFd::of(::socket, answer.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket_ && (::connect(socket_.get(), answer.raw(), answer.raw_size()) == 0 || errno == EINPROGRESS)) {
      const Status watched = reactor_.watch(
          socket_.get(), EPOLLOUT, [self = shared_from_this()](std::uint32_t) { self->take_outcome(); });
      if (watched) return;
      failure_ = watched.error();
    } else {
      failure_ = dial_error(describe(), errno);
    }
    socket_.reset();
  }
  finish(tl::unexpected(failure_.value_or(Error{ErrorCode::kNotFound, describe() + ": no address"})));
}

void Dialer::take_outcome() {
  reactor_.unwatch(socket_.get());
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error == 0) return finish(std::move(socket_));
  failure_ = dial_error(describe(), error);
  socket_.reset();
  try_next();
}

void Dialer::finish(Result<UniqueFd> outcome) {
  const Done done = std::exchange(done_, nullptr);
  stop();
  if (done) done(std::move(outcome));
}

void Dialer::stop() {
  done_ = nullptr;
  if (resolution_) reactor_.unwatch(resolution_->ready.get());
  resolution_ = nullptr;
  if (socket_) reactor_.unwatch(socket_.get());
  socket_.reset();
}

}  // namespace p2p::engine
