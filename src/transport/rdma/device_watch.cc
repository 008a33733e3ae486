// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/rdma/device_watch.h"

#include <sys/epoll.h>

#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace p2p::rdma {

Result<DeviceWatch> DeviceWatch::start(std::shared_ptr<verbs::Device> device, const verbs::Port& port,
                                       std::chrono::milliseconds patience, socket::PollSet& polls) {
  DeviceWatch made(std::move(device), port, patience, polls);
  auto events = made.device_->watch();
  if (!events) return tl::unexpected(events.error());
  made.events_ = std::move(*events);
  // Asked only now, so that no event in between is missed.
  const auto now = made.device_->port(port.number);
  if (!now) return tl::unexpected(now.error());
  if (!now->active) {
    return fail(ErrorCode::kUnavailable, "open an rdma channel: port {} is down", made.name_);
  }
  for (const int fd : {made.device_->event_fd(), made.events_->fd()}) {
    if (const Status added = polls.add(fd, EPOLLIN); !added) return tl::unexpected(added.error());
  }
  return made;
}

std::vector<verbs::Event> DeviceWatch::take() {
  device_->fetch_events();
  std::vector<verbs::Event> rest;
  for (const verbs::Event& event : events_->take()) {
    switch (event.kind) {
      case verbs::EventKind::kPortDown:
        if (event.port != port_ || port_deadline_ != kNever) break;
        port_deadline_ = Clock::now() + patience_;
        log(LogLevel::kInfo, "{}: {}", name_, event.text);
        break;
      case verbs::EventKind::kPortUp:
        if (event.port == port_) port_deadline_ = kNever;
        break;
      case verbs::EventKind::kQueuePair:
      case verbs::EventKind::kDeviceGone: rest.push_back(event); break;
      case verbs::EventKind::kOther: break;
    }
  }
  return rest;
}

void DeviceWatch::stop() {
  port_deadline_ = kNever;
  polls_->remove(events_->fd());
  polls_->remove(device_->event_fd());
}

}  // namespace p2p::rdma
