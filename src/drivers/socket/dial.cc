// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/dial.h"

#include <netdb.h>
#include <poll.h>

#include <condition_variable>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "base/wait_for_fd.h"
#include "drivers/socket/socket.h"
#include "p2p/host_port.h"

namespace p2p::socket {
namespace {

using Clock = std::chrono::steady_clock;
using Addresses = Result<std::vector<Address>>;

/// What a thread that looks a name up has found, whether or not somebody still waits for it.
struct LookUp {
  Mutex mutex;
  std::condition_variable_any done;
  std::optional<Addresses> found P2P_GUARDED_BY(mutex);
};

bool is_numeric(const std::string& host) {
  const auto place = HostPort::parse(host);
  return place && place->is_numeric();
}

Result<UniqueFd> dial_one(const Address& address, DialDeadline deadline) {
  const auto any = Address::parse(address.family() == AF_INET6 ? "::" : "0.0.0.0", 0);
  if (!any) return tl::unexpected(any.error());
  auto fd = start_dial(*any, address);
  while (fd) {
    const auto connected = dial_finished(fd->get());
    if (!connected) return tl::unexpected(connected.error());
    if (*connected) break;
    if (!wait_for_fd(fd->get(), POLLOUT, deadline)) {
      return fail(ErrorCode::kTimedOut, "connect to {}: no answer in time", address.describe());
    }
  }
  return fd;
}

}  // namespace

Addresses addresses_of(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    const bool none = error == EAI_NONAME || error == EAI_NODATA;
    return fail(none ? ErrorCode::kNotFound : ErrorCode::kUnavailable, "look up {}: {}", host,
                ::gai_strerror(error));
  }
  std::vector<Address> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    auto address = Address::from(each->ai_addr, each->ai_addrlen);
    if (!address) continue;
    address->set_port(port);
    addresses.push_back(*address);
  }
  ::freeaddrinfo(found);
  if (addresses.empty()) return fail(ErrorCode::kNotFound, "look up {}: no address", host);
  return addresses;
}

Addresses addresses_of(const std::string& host, std::uint16_t port, DialDeadline deadline) {
  if (is_numeric(host)) return addresses_of(host, port);
  const auto look_up = std::make_shared<LookUp>();
  auto thread = start_thread("p2p-look-up", [look_up, host, port] {
    Addresses found = addresses_of(host, port);
    MutexLock lock(look_up->mutex);
    look_up->found = std::move(found);
    look_up->done.notify_all();
  });
  if (!thread) return tl::unexpected(thread.error());
  thread->detach();
  MutexLock lock(look_up->mutex);
  while (!look_up->found && Clock::now() < deadline) look_up->done.wait_until(look_up->mutex, deadline);
  if (!look_up->found) return fail(ErrorCode::kTimedOut, "look up {}: no answer in time", host);
  return std::move(*look_up->found);
}

Result<UniqueFd> dial(const std::string& host, std::uint16_t port, DialDeadline deadline) {
  const auto addresses = addresses_of(host, port, deadline);
  if (!addresses) return tl::unexpected(addresses.error());
  Result<UniqueFd> fd = fail(ErrorCode::kNotFound, "connect to {}: no address", host);
  for (std::size_t left = addresses->size(); left != 0 && !fd; --left) {
    // One that is dark leaves the others their share of the time.
    const auto now = Clock::now();
    const auto share = now + (deadline - now) / static_cast<int>(left);
    fd = dial_one((*addresses)[addresses->size() - left], share);
  }
  return fd;
}

}  // namespace p2p::socket
