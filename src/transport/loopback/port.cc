// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/loopback/port.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "drivers/crypto/crypto.h"

namespace p2p::loopback {

namespace {

struct OpenPorts {
  Mutex mutex;
  std::map<Port::Name, std::weak_ptr<Port>> by_name P2P_GUARDED_BY(mutex);
};

// The two ends of a process have nothing else in common. Never destroyed, so that an endpoint may outlive
// main().
OpenPorts& open_ports() {
  static auto* const ports = new OpenPorts;
  return *ports;
}

}  // namespace

Port::Port(const ChannelSetup& setup, std::shared_ptr<const RegistrationTable> regions)
    : setup_(setup), regions_(std::move(regions), setup.peer_identity) {}

Result<std::shared_ptr<Port>> Port::open(const ChannelSetup& setup,
                                         std::shared_ptr<const RegistrationTable> regions) {
  const std::shared_ptr<Port> port(new Port(setup, std::move(regions)));
  port->wake_ = UniqueFd::of(::eventfd, 0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (!port->wake_) return tl::unexpected(system_error("open a loopback channel: eventfd"));
  if (const Status drawn = crypto::random_bytes(port->name_); !drawn) return tl::unexpected(drawn.error());
  OpenPorts& ports = open_ports();
  const MutexLock lock(ports.mutex);
  ports.by_name[port->name_] = port;
  return port;
}

Result<std::shared_ptr<Port>> Port::find(ByteView name, const ChannelSetup& setup) {
  Name wanted;
  if (name.size() != wanted.size()) {
    return fail(ErrorCode::kProtocol, "connect over loopback: the peer's address has {} bytes, not {}",
                name.size(), wanted.size());
  }
  std::ranges::copy(name, wanted.begin());
  std::shared_ptr<Port> port;
  {
    OpenPorts& ports = open_ports();
    const MutexLock lock(ports.mutex);
    const auto found = ports.by_name.find(wanted);
    if (found != ports.by_name.end()) port = found->second.lock();
  }
  if (!port) return fail(ErrorCode::kUnavailable, "connect over loopback: the peer is in another process");
  if (!port->ends_session_of(setup)) {
    return fail(ErrorCode::kPermissionDenied,
                "connect over loopback: the peer named a channel of another session");
  }
  return port;
}

Port::~Port() {
  OpenPorts& ports = open_ports();
  const MutexLock lock(ports.mutex);
  ports.by_name.erase(name_);
}

bool Port::attach(const std::shared_ptr<Port>& partner) {
  const MutexLock lock(mutex_);
  if (attached_ || closed()) return false;
  partner_ = partner;
  attached_ = true;
  return true;
}

void Port::close() {
  const MutexLock lock(mutex_);
  closed_.store(true, std::memory_order_release);
  if (const auto partner = partner_.lock()) ::eventfd_write(partner->wake_.get(), 1);
}

bool Port::ends_session_of(const ChannelSetup& setup) const {
  return setup_.role != setup.role && setup_.local_incarnation == setup.peer_incarnation &&
         setup_.peer_incarnation == setup.local_incarnation && crypto::equal(setup_.secret, setup.secret);
}

}  // namespace p2p::loopback
