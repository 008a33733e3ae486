// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/router.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace p2p::engine {
namespace {

// Of different reasons for one connection; more are no help to anybody.
constexpr std::size_t kMaxWarnings = 16;

constexpr std::string_view name_of(MemoryKind kind) { return kind == MemoryKind::kHost ? "host" : "CUDA"; }

// Of a transport that has no channel for the time being.
constexpr std::string_view kInterrupted = "its channels were lost, and are being opened again";

std::string not_carried(MemoryKind local, MemoryKind remote) {
  return fmt::format("does not carry {} to {} memory", name_of(local), name_of(remote));
}

void append(std::string& text, std::string_view name, std::string_view reason) {
  text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name, reason);
}

void append_history(std::string& text, std::string_view name, const PathHistory& history) {
  const std::string channels = history.describe();
  if (!channels.empty()) text += fmt::format("{}{} channels {}", text.empty() ? "" : "; ", name, channels);
}

}  // namespace

Router::Router(const TransportList& transports, std::string required)
    : transports_(transports), required_(std::move(required)) {
  MutexLock lock(mutex_);
  publish(Rows(transports.size()));
}

void Router::publish(Rows rows) {
  versions_.push_back(std::make_unique<const Rows>(std::move(rows)));
  rows_.store(versions_.back().get(), std::memory_order_release);
}

void Router::open(std::size_t transport, std::shared_ptr<Lane> lane) {
  MutexLock lock(mutex_);
  if (const Row& now = this->rows()[transport]; !now.closed && now.lane == lane) return;
  Rows rows = this->rows();
  rows[transport] = {std::nullopt, false, false, std::move(lane)};
  publish(std::move(rows));
}

void Router::close(std::size_t transport, std::string reason) {
  MutexLock lock(mutex_);
  Rows rows = this->rows();
  rows[transport] = {std::move(reason), false, false, rows[transport].lane};
  publish(std::move(rows));
}

void Router::close(std::size_t transport, const Error& why) {
  const bool guessed = why.code == ErrorCode::kPeerGone || why.code == ErrorCode::kTimedOut;
  MutexLock lock(mutex_);
  Rows rows = this->rows();
  Row& row = rows[transport];
  if (guessed && row.closed && !row.awaited) return;
  row = {why.message, false, guessed, row.lane};
  publish(std::move(rows));
}

void Router::heard(std::size_t transport, std::string reason) {
  const Row& row = rows()[transport];
  if (row.guessed && !row.lane) close(transport, std::move(reason));
}

void Router::await(std::size_t transport) {
  MutexLock lock(mutex_);
  Rows rows = this->rows();
  rows[transport].closed = "not connected yet";
  rows[transport].awaited = true;
  publish(std::move(rows));
}

void Router::close_all(const std::string& reason) {
  MutexLock lock(mutex_);
  publish(Rows(transports_.size(), Row{reason, false, false, nullptr}));
}

bool Router::usable(std::size_t transport) const { return !rows()[transport].closed; }

bool Router::may_be_usable(std::size_t transport) const {
  const Row& row = rows()[transport];
  return !row.closed || row.awaited;
}

bool Router::any_usable() const {
  return std::ranges::any_of(rows(), [](const Row& row) { return !row.closed; });
}

bool Router::over() const {
  return std::ranges::all_of(rows(), [](const Row& row) { return row.closed && !row.awaited; });
}

bool Router::wants_exported_key(MemoryPlace place) const {
  const Rows& rows = this->rows();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Transport& transport = *transports_[i].transport;
    const bool hopeless = rows[i].closed && !rows[i].awaited;
    if (hopeless || !transport.capabilities().needs_exported_key) continue;
    if (transport.carries({}, place) || transport.carries({MemoryKind::kCuda, 0}, place)) return true;
  }
  return false;
}

std::shared_ptr<Lane> Router::lane(std::size_t transport) const { return rows()[transport].lane; }

std::optional<Explanation::Passed> Router::obstacle(const Row& row, std::size_t transport,
                                                    const Region& local, const RemoteRegion& remote) const {
  const auto passed = [&](RouteObstacle obstacle, std::string reason) {
    return Explanation::Passed{std::string(transports_[transport].transport->name()), obstacle,
                               std::move(reason)};
  };
  const MemoryPlace here = local.info().place;
  const MemoryPlace there = remote.info().place;
  if (row.closed) return passed(RouteObstacle::kUnusable, *row.closed);
  if (!transports_[transport].transport->carries(here, there)) {
    return passed(RouteObstacle::kNotCarried, not_carried(here.kind, there.kind));
  }
  if (!local.registration(transport)) {
    return passed(RouteObstacle::kNotRegistered, local.reason(transport));
  }
  const RemoteKey* const key = remote.key(transport);
  if (key == nullptr) return passed(RouteObstacle::kNotShared, remote.reason(transport));
  const Status pair = transports_[transport].transport->check_pair(*local.registration(transport), *key);
  if (!pair) return passed(RouteObstacle::kNotShared, pair.error().message);
  return std::nullopt;
}

bool Router::is_required(std::size_t transport, const Region& local, const RemoteRegion& remote) const {
  const Transport& it = *transports_[transport].transport;
  return !required_.empty() && it.name() == required_ && it.carries(local.info().place, remote.info().place);
}

// Regions and addresses differ from one refusal to the next, the reason does not.
bool Router::is_news(const Explanation::Passed& passed, std::size_t transport) const {
  const bool of_regions =
      passed.obstacle == RouteObstacle::kNotRegistered || passed.obstacle == RouteObstacle::kNotShared;
  if (!of_regions && !transports_[transport].transport->capabilities().named) return false;
  std::string key = passed.transport + passed.reason;
  std::erase_if(key, [](unsigned char letter) { return std::isxdigit(letter) != 0; });
  MutexLock lock(mutex_);
  return warned_.size() < kMaxWarnings && warned_.insert(std::move(key)).second;
}

Result<std::size_t> Router::choose(const Region& local, const RemoteRegion& remote,
                                   std::optional<std::size_t> around) const {
  const bool on_gpu =
      local.info().place.kind == MemoryKind::kCuda || remote.info().place.kind == MemoryKind::kCuda;
  std::string why;
  std::string news;
  std::optional<std::size_t> chosen;
  std::optional<std::size_t> interrupted;
  const Rows& rows = this->rows();
  for (std::size_t i = 0; i < rows.size() && !chosen; ++i) {
    auto passed = obstacle(rows[i], i, local, remote);
    if (!passed && i == around) {
      passed = {std::string(transports_[i].transport->name()), RouteObstacle::kUnusable,
                "its channels are lost again and again"};
    }
    if (!passed) {
      if (!rows[i].lane->interrupted() || is_required(i, local, remote)) {
        chosen = i;
      } else if (!interrupted) {
        interrupted = i;
        passed = {std::string(transports_[i].transport->name()), RouteObstacle::kUnusable,
                  std::string(kInterrupted)};
        if (on_gpu && is_news(*passed, i)) append(news, passed->transport, passed->reason);
      }
      continue;
    }
    append(why, passed->transport, passed->reason);
    if (is_required(i, local, remote)) {
      return fail(ErrorCode::kUnavailable, "no route: {} is required (UCCL_P2P_REQUIRE), and {}", required_,
                  passed->reason);
    }
    if (on_gpu && is_news(*passed, i)) append(news, passed->transport, passed->reason);
  }
  if (!chosen) chosen = interrupted;
  if (!chosen) return fail(ErrorCode::kUnavailable, "no route ({})", why);
  if (!news.empty()) {
    log(LogLevel::kWarning, "transfers between {} and {} memory take {}, which is slower: {}",
        name_of(local.info().place.kind), name_of(remote.info().place.kind),
        transports_[*chosen].transport->name(), news);
  }
  return *chosen;
}

Explanation Router::explain(const Region& local, const RemoteRegion& remote) const {
  const Rows& rows = this->rows();
  Explanation found;
  std::optional<Explanation> waits;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    auto passed = obstacle(rows[i], i, local, remote);
    if (!passed) {
      Explanation taken = found;
      taken.transport = transports_[i].transport->name();
      taken.detail = rows[i].lane->describe();
      const std::string how = transports_[i].transport->describe(*remote.key(i));
      if (!how.empty()) taken.detail += "; " + how;
      if (!rows[i].lane->interrupted() || is_required(i, local, remote)) return taken;
      passed = {taken.transport, RouteObstacle::kUnusable, std::string(kInterrupted)};
      if (!waits) waits = std::move(taken);
    }
    found.passed.push_back(std::move(*passed));
  }
  return waits.value_or(found);
}

std::shared_ptr<ChannelRunner> Router::message_runner(const std::shared_ptr<ChannelRunner>& now) const {
  std::shared_ptr<ChannelRunner> best;
  for (const Row& row : rows()) {
    if (row.closed || !row.lane) continue;
    const RunnerList runners = row.lane->runners();
    // Both sides come to the same one, also where another was up first: a caller drives the channel on which
    // he sends, and so hears of what the peer sends there.
    if (now && runners.has(*now)) return runners.message_runner();
    if (!best) best = runners.message_runner();
  }
  return best;
}

std::vector<Route> Router::routes() const {
  const Rows& rows = this->rows();
  std::vector<Route> routes;
  constexpr std::array kKinds{MemoryKind::kHost, MemoryKind::kCuda};
  for (const MemoryKind local : kKinds) {
    for (const MemoryKind remote : kKinds) routes.push_back(best(rows, local, remote));
  }
  return routes;
}

Route Router::best(const Rows& rows, MemoryKind local, MemoryKind remote) const {
  const auto place = [](MemoryKind kind) { return MemoryPlace{kind, kind == MemoryKind::kHost ? -1 : 0}; };
  Route route{local, remote, "", "", "", ""};
  std::optional<Route> waits;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Transport& transport = *transports_[i].transport;
    const bool carries = transport.carries(place(local), place(remote));
    if (carries && rows[i].lane) {
      append_history(route.history, transport.name(), rows[i].lane->history());
    }
    if (rows[i].closed || !carries) {
      append(route.reason, transport.name(), rows[i].closed ? *rows[i].closed : not_carried(local, remote));
      continue;
    }
    Route found = route;
    found.transport = transport.name();
    found.detail = rows[i].lane->describe();
    found.reason =
        route.reason.empty() ? "the preferred transport" : "the best that works; before it " + route.reason;
    if (!rows[i].lane->interrupted()) return found;
    append(route.reason, transport.name(), kInterrupted);
    if (!waits) waits = std::move(found);
  }
  route.reason = "no transport: " + route.reason;
  return waits.value_or(route);
}

}  // namespace p2p::engine

namespace p2p {

std::string_view to_string(RouteObstacle obstacle) {
  switch (obstacle) {
    case RouteObstacle::kUnusable: return "unusable";
    case RouteObstacle::kNotCarried: return "not_carried";
    case RouteObstacle::kNotRegistered: return "not_registered";
    case RouteObstacle::kNotShared: return "not_shared";
  }
  return "unknown";
}

}  // namespace p2p
