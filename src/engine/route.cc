// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <array>

#include "base/error.h"
#include "engine/lanes.h"

// How Lanes chooses: the first transport, in the order of preference, that is up on both sides, carries the
// pair of places and has both memories registered.
namespace p2p::engine {
namespace {

constexpr std::string_view name_of(MemoryKind kind) { return kind == MemoryKind::kHost ? "host" : "CUDA"; }

void append(std::string& text, std::string_view name, std::string_view reason) {
  text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name, reason);
}

}  // namespace

bool Lanes::wants_exported_key(MemoryPlace place) const {
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Transport& transport = *context_->transports()[i].transport;
    if (!entries_[i].reason.empty() || !transport.capabilities().needs_exported_key) continue;
    if (transport.carries({}, place) || transport.carries({MemoryKind::kCuda, 0}, place)) return true;
  }
  return false;
}

Result<std::size_t> Lanes::route(const Region& local, const RemoteRegion& remote) const {
  MutexLock lock(mutex_);
  std::string why;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Transport& transport = *context_->transports()[i].transport;
    const MemoryPlace here = local.info().place;
    const MemoryPlace there = remote.info().place;
    if (!entries_[i].reason.empty()) {
      append(why, transport.name(), entries_[i].reason);
    } else if (!transport.carries(here, there)) {
      append(why, transport.name(),
             fmt::format("does not carry {} to {} memory", name_of(here.kind), name_of(there.kind)));
    } else if (!local.registration(i)) {
      append(why, transport.name(), local.reason(i));
    } else if (remote.key(i) == nullptr) {
      append(why, transport.name(), remote.reason(i));
    } else {
      return i;
    }
  }
  return fail(ErrorCode::kUnavailable, "no route ({})", why);
}

std::vector<Route> Lanes::routes() const {
  MutexLock lock(mutex_);
  std::vector<Route> routes;
  constexpr std::array kKinds{MemoryKind::kHost, MemoryKind::kCuda};
  for (const MemoryKind local : kKinds) {
    for (const MemoryKind remote : kKinds) {
      const auto place = [](MemoryKind kind) {
        return MemoryPlace{kind, kind == MemoryKind::kHost ? -1 : 0};
      };
      Route route{local, remote, "", "", ""};
      for (std::size_t i = 0; i < entries_.size(); ++i) {
        const Transport& transport = *context_->transports()[i].transport;
        const bool carries = transport.carries(place(local), place(remote));
        if (carries && entries_[i].reason.empty()) {
          route.transport = transport.name();
          route.detail = entries_[i].lane->describe();
          break;
        }
        append(route.reason, transport.name(),
               !entries_[i].reason.empty()
                   ? entries_[i].reason
                   : fmt::format("does not carry {} to {} memory", name_of(local), name_of(remote)));
      }
      if (route.transport.empty()) {
        route.reason = "no transport: " + route.reason;
      } else {
        route.reason = route.reason.empty() ? "the preferred transport"
                                            : "the best that works; before it " + route.reason;
      }
      routes.push_back(std::move(route));
    }
  }
  return routes;
}

}  // namespace p2p::engine
