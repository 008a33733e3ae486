// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/transfer/region_exchange.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/futex.h"
#include "base/memory_guard.h"
#include "base/underlying.h"
#include "base/wire_code.h"

namespace p2p::engine {
namespace {

// Questions to the peer that it has not answered. More wait here, so that two sides that ask each other for
// any number of regions never have more than so many answers on their way. Those behind the first ones leave
// together, once answers have made room for many: each time wakes the peer, and its answers this side.
constexpr std::size_t kMaxAsked = 256;
constexpr std::size_t kAskAgain = kMaxAsked / 2;

// What an imported region takes, with its keys and its places in the tables.
constexpr std::uint64_t kImportBytes = 640;

// Failed regions whose errors are kept.
constexpr std::size_t kMaxEndedImports = 1024;

}  // namespace

Result<RemoteRegionId> RegionExchange::import(const RegionDescriptor& descriptor, Import how) {
  std::shared_ptr<RemoteRegion> remote;
  {
    MutexLock lock(mutex_);
    if (closed_) return fail(ErrorCode::kPeerGone, "import a region: the connection is closed");
    if (started_ && descriptor.incarnation != peer_) {
      return fail(
          ErrorCode::kPermissionDenied,
          "import region {}: its descriptor comes from another endpoint, or from an earlier life of the peer",
          to_underlying(descriptor.region));
    }
    // Behind all others without a search, where an owner's regions come in the order of their numbers.
    const RemoteRegionId next{last_id_ + 1};
    const auto known =
        known_.try_emplace(known_.end(), std::pair(to_underlying(descriptor.region), descriptor.key), next);
    if (known->second != next) {
      const auto doubt = doubted_.find(to_underlying(known->second));
      const bool over = doubt != doubted_.end() && doubt->second == Doubt::kOver;
      if (doubt != doubted_.end() && !over) doubt->second = Doubt::kImportedSince;
      const bool failed =
          over || remotes_.at(to_underlying(known->second))->state() == RemoteRegion::State::kFailed;
      if (how == Import::kOnce || !failed) return known->second;
      known->second = next;
    }
    const bool named = how == Import::kNamed;
    if (Status room = named_.set(named_.bytes() + (named ? kImportBytes : 0)); !room) {
      known_.erase(known);
      return tl::unexpected(room.error());
    }
    remote = std::make_shared<RemoteRegion>(known->second, descriptor, named);
    remotes_.emplace(++last_id_, remote);
    if (!started_) return remote->id();
  }
  resolve(remote);
  return remote->id();
}

std::shared_ptr<RemoteRegion> RegionExchange::find(RemoteRegionId id) const {
  MutexLock lock(mutex_);
  const auto found = remotes_.find(to_underlying(id));
  return found == remotes_.end() ? nullptr : found->second;
}

void RegionExchange::wake_waiters() const {
  changes_.fetch_add(1);
  if (waiters_.load() != 0) futex_wake_all(changes_);
}

Status RegionExchange::wait(RemoteRegionId id, std::chrono::nanoseconds timeout) const {
  const auto remote = find(id);
  if (!remote)
    return fail(ErrorCode::kNotFound, "wait for remote region {}: none was imported", to_underlying(id));
  const auto deadline = deadline_after(timeout);
  waiters_.fetch_add(1);
  const std::shared_ptr<void> waits(nullptr, [this](void*) { waiters_.fetch_sub(1); });
  for (;;) {
    const std::uint32_t seen = changes_.load();
    if (remote->state() == RemoteRegion::State::kReady) return {};
    if (remote->state() == RemoteRegion::State::kFailed) return tl::unexpected(remote->error());
    if (std::chrono::steady_clock::now() >= deadline) {
      return fail(ErrorCode::kTimedOut, "wait for remote region {}: no word from its owner after {} ms",
                  to_underlying(id), std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count());
    }
    futex_wait(changes_, seen, deadline);
  }
}

void RegionExchange::when_resolved(std::span<const RemoteSpan> spans, std::function<void()> then) {
  // Whatever is waited for keeps it; the last one that lets go calls.
  const auto all = std::shared_ptr<void>(nullptr, [then = std::move(then)](void*) { then(); });
  {
    MutexLock lock(mutex_);
    if (!open_ && !closed_) opening_.push_back(all);
  }
  std::unordered_set<std::uint32_t> seen;
  for (const RemoteSpan& span : spans) {
    if (!seen.insert(to_underlying(span.region)).second) continue;
    if (const auto remote = find(span.region)) remote->when_resolved([all] {});
  }
}

Result<RemoteRegionId> RegionExchange::import_span(const wire::ReceiveSpan& span) {
  RegionDescriptor descriptor{
      span.address,          span.size, {static_cast<MemoryKind>(span.kind), span.device},
      RegionId{span.region}, span.key,  0};
  {
    MutexLock lock(mutex_);
    descriptor.incarnation = peer_;
  }
  return import(descriptor, Import::kNamed);
}

void RegionExchange::start() {
  std::vector<std::shared_ptr<RemoteRegion>> remotes;
  {
    MutexLock lock(mutex_);
    if (std::exchange(started_, true)) return;
    context_->regions->add_importer(answers_);
    for (const auto& [id, remote] : remotes_) remotes.push_back(remote);
  }
  std::ranges::sort(remotes, {}, [](const auto& remote) { return remote->id(); });
  for (const auto& remote : remotes) resolve(remote);
  wake_waiters();
}

void RegionExchange::open() {
  std::vector<std::shared_ptr<void>> opening;
  {
    MutexLock lock(mutex_);
    open_ = true;
    opening.swap(opening_);
  }
  for (auto& one : opening) one.reset();  // in their order
}

void RegionExchange::resolve(const std::shared_ptr<RemoteRegion>& remote) {
  const RegionDescriptor& descriptor = remote->descriptor();
  bool stranger = false;
  const bool asks = router_->wants_exported_key(descriptor.place);
  {
    MutexLock lock(mutex_);
    stranger = descriptor.incarnation != peer_;
    if (!stranger && asks && !closed_) to_ask_.push_back(remote);
  }
  if (stranger) {
    fail_region(remote, {ErrorCode::kPermissionDenied,
                         fmt::format("use region {}: its descriptor comes from another endpoint, or from an "
                                     "earlier life of the peer",
                                     to_underlying(descriptor.region))});
  } else if (asks) {
    ask();
  } else {
    // Nobody needs the owner's message: the owner checks each access by id and key.
    make_ready(*remote, {descriptor.region, descriptor.key, nullptr, 0, descriptor.place}, {});
  }
}

// Asks as many questions as there is room for, if there is much.
void RegionExchange::ask() {
  std::vector<wire::RegionQuery> queries;
  {
    MutexLock lock(mutex_);
    if (full_ && asked_.size() > kAskAgain) return;
    while (!to_ask_.empty() && asked_.size() < kMaxAsked) {
      const auto remote = std::move(to_ask_.front());
      to_ask_.pop_front();
      const RegionDescriptor& descriptor = remote->descriptor();
      queries.push_back({next_query_++, to_underlying(descriptor.region), descriptor.key});
      asked_.emplace(queries.back().query, remote);
    }
    full_ = asked_.size() == kMaxAsked;
  }
  for (const wire::RegionQuery& query : queries) send_(query);
}

// The region is of no more use. It is forgotten when many others have ended after it.
void RegionExchange::fail_region(const std::shared_ptr<RemoteRegion>& remote, Error error,
                                 std::function<void()> through) {
  std::shared_ptr<RemoteRegion> oldest;
  {
    MutexLock lock(mutex_);
    if (remote->state() != RemoteRegion::State::kFailed) ended_.push_back(remote);
    if (ended_.size() > kMaxEndedImports) {
      oldest = std::move(ended_.front());
      ended_.pop_front();
      if (oldest->named()) static_cast<void>(named_.set(named_.bytes() - kImportBytes));  // less than before
      remotes_.erase(to_underlying(oldest->id()));
      const auto known = known_.find({to_underlying(oldest->descriptor().region), oldest->descriptor().key});
      if (known != known_.end() && known->second == oldest->id()) known_.erase(known);
    }
  }
  remote->set_failed(std::move(error), std::move(through));
  MutexLock lock(mutex_);
  doubted_.erase(to_underlying(remote->id()));
}

void RegionExchange::make_ready(RemoteRegion& remote, const RegionInfo& info,
                                const std::vector<wire::ExportedKey>& exported) {
  const TransportList& transports = context_->transports();
  std::vector<std::unique_ptr<RemoteKey>> keys(transports.size());
  std::vector<std::string> reasons;  // as many as there are transports once there is one
  const auto refuse = [&](std::size_t transport, std::string why) {
    reasons.resize(transports.size());
    reasons[transport] = std::move(why);
  };
  for (std::size_t i = 0; i < transports.size(); ++i) {
    if (!router_->may_be_usable(i)) continue;
    Transport& transport = *transports[i].transport;
    const auto found = std::find_if(exported.begin(), exported.end(), [&](const wire::ExportedKey& key) {
      return key.transport == transport.name();
    });
    if (found == exported.end() && transport.capabilities().needs_exported_key) {
      refuse(i,
             "the peer has not registered the region with it (one that is read-only or expires it may not)");
      continue;
    }
    auto key = transport.import_region(info, found == exported.end() ? ByteView() : ByteView(found->key));
    if (key) {
      keys[i] = std::move(*key);
    } else {
      refuse(i, std::move(key.error().message));
    }
  }
  if (router_->over()) return;  // and keys are missing: the region fails with the connection
  remote.set_ready(info, std::move(keys), std::move(reasons));
}

Status RegionExchange::on(const wire::RegionAnswer& answer) {
  std::shared_ptr<RemoteRegion> remote;
  bool lives = false;
  {
    MutexLock lock(mutex_);
    const auto asked = asked_.find(answer.query);
    if (asked == asked_.end())
      return fail(ErrorCode::kProtocol, "an answer about a region that was not asked");
    remote = std::move(asked->second);
    asked_.erase(asked);
    if (const auto doubt = doubted_.find(to_underlying(remote->id())); doubt != doubted_.end()) {
      lives = answer.error == 0 || doubt->second == Doubt::kImportedSince;
      if (answer.error == 0) {
        doubted_.erase(doubt);
      } else if (lives) {
        to_ask_.push_back(remote);  // the owner may have said so before it registered that memory again
        doubt->second = Doubt::kAsked;
      } else {
        doubt->second = Doubt::kOver;
      }
    }
  }
  ask();
  if (lives) return {};
  if (answer.error != 0) {
    fail_region(remote, {code_from_wire(answer.error),
                         "use a remote region: the owner says: " + answer.message.text()});
  } else if (answer.base + answer.size < answer.base) {
    return fail(ErrorCode::kProtocol, "a region of {} bytes at {:#x}", answer.size, answer.base);
  } else {
    RegionInfo info{remote->descriptor().region, remote->descriptor().key,
                    reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(answer.base)), answer.size,
                    remote->descriptor().place};
    // An import may read the memory, so a revocation waits for it as for a transfer.
    if (!remote->begin_import()) return {};
    const std::shared_ptr<void> reading(nullptr, [remote](void*) { remote->remove_user(); });
    const auto ready = [self = shared_from_this(), remote, info, keys = answer.keys, reading] {
      guard_memory(
          "an import of a region", [&] { self->make_ready(*remote, info, keys); },
          [&] { self->fail_region(remote, {ErrorCode::kSystem, std::string(kOutOfMemory)}); });
      self->wake_waiters();
      self->warm_up(remote);
    };
    // A device that is full of work makes its driver wait; the session's other messages shall not.
    if (!takes_long(info, context_->transports(), *router_) || !context_->imports.post(ready)) ready();
    return {};
  }
  wake_waiters();
  return {};
}

// After the first transfers that wait for the region have begun.
void RegionExchange::warm_up(const std::shared_ptr<RemoteRegion>& remote) {
  if (!remote->add_user()) return;  // revoked
  const TransportList& transports = context_->transports();
  for (std::size_t i = 0; i < transports.size(); ++i) {
    if (const RemoteKey* const key = remote->key(i)) transports[i].transport->warm_up(*key);
  }
  remote->remove_user();
}

void RegionExchange::on(const wire::RegionRevoke& revoke) {
  std::vector<std::shared_ptr<RemoteRegion>> gone;
  {
    MutexLock lock(mutex_);
    for (auto known = known_.lower_bound({revoke.region, RegionKey{}});
         known != known_.end() && known->first.first == revoke.region; ++known) {
      gone.push_back(remotes_.at(to_underlying(known->second)));
    }
  }
  if (revoke.revocation == 0) return doubt(gone);
  // Answered once no transfer is on its way to any of them.
  const auto through = std::shared_ptr<void>(
      nullptr, [send = send_, id = revoke.revocation](void*) { send(wire::RegionRevoked{id}); });
  for (const auto& remote : gone) {
    fail_region(
        remote,
        {ErrorCode::kNotFound,
         fmt::format("use remote region {}: its owner deregistered it, or its memory was freed or unmapped",
                     revoke.region)},
        [through] {});
  }
  wake_waiters();
}

// The owner was not asked when these were imported, and now says that the region has ended. It may have
// registered the memory again under that name since, and an application may have brought its descriptor here
// before this message: whether the region lives is then for the owner to say.
void RegionExchange::doubt(const std::vector<std::shared_ptr<RemoteRegion>>& regions) {
  {
    MutexLock lock(mutex_);
    for (const auto& remote : regions) {
      if (closed_ || remote->state() == RemoteRegion::State::kFailed) continue;
      if (doubted_.try_emplace(to_underlying(remote->id()), Doubt::kAsked).second) to_ask_.push_back(remote);
    }
  }
  ask();
}

void RegionExchange::close(const Error& error, const std::shared_ptr<Fence>& fence) {
  std::unordered_map<std::uint32_t, std::shared_ptr<RemoteRegion>> remotes;
  std::vector<std::shared_ptr<void>> opening;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    remotes = remotes_;
    std::erase_if(remotes_, [](const auto& remote) { return remote.second->named(); });
    known_.clear();
    static_cast<void>(named_.set(0));
    opening.swap(opening_);
    asked_.clear();
    to_ask_.clear();
    doubted_.clear();
  }
  for (const auto& [id, remote] : remotes) remote->set_failed(error);
  answers_->close(fence);
  wake_waiters();
}

}  // namespace p2p::engine
