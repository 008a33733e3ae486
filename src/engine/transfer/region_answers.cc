// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/transfer/region_answers.h"

#include "base/error.h"
#include "base/memory_guard.h"
#include "base/underlying.h"
#include "base/wire_code.h"
#include "engine/memory/fence.h"

namespace p2p::engine {

bool takes_long(const RegionInfo& info, const TransportList& transports, const Router& router) {
  if (info.place.kind == MemoryKind::kHost) return false;
  for (std::size_t i = 0; i < transports.size(); ++i) {
    if (router.may_be_usable(i) && transports[i].transport->capabilities().slow_import) return true;
  }
  return false;
}

Status RegionAnswers::may_read(const RegionInfo& region) {
  std::string identity;
  {
    MutexLock lock(mutex_);
    identity = identity_;
  }
  return region.check(Operation::kRead, identity);
}

// The region that the peer asks about, if it may use it. It is told when the region is taken back.
Result<std::shared_ptr<Region>> RegionAnswers::give(const wire::RegionQuery& query) {
  auto region = context_->regions->find(RegionId{query.region}, query.key);
  if (!region) return region;
  if (Status may = may_read((*region)->info()); !may) return tl::unexpected(may.error());
  if (!(*region)->add_importer(shared_from_this())) {
    return fail(ErrorCode::kNotFound, "region {}: deregistered", query.region);
  }
  MutexLock lock(mutex_);
  given_.insert(query.region);
  return region;
}

void RegionAnswers::on(const wire::RegionQuery& query) {
  const auto region = give(query);
  // A driver that maps memory answers nobody meanwhile; the session's other messages shall not wait for it.
  const bool waits = region && takes_long((*region)->info(), context_->transports(), *router_);
  const auto later = [self = shared_from_this(), query] {
    guard_memory(
        "an answer about a region",
        [&] { self->answer(query, self->context_->regions->find(RegionId{query.region}, query.key)); },
        [&] { self->answer(query, fail(ErrorCode::kSystem, "{}", kOutOfMemory)); });
  };
  if (!waits || !context_->answers.post(later)) answer(query, region);
}

void RegionAnswers::answer(const wire::RegionQuery& query, const Result<std::shared_ptr<Region>>& region) {
  wire::RegionAnswer answer{.query = query.query};
  if (!region) {
    answer.error = wire_code(region.error().code);
    answer.message = region.error().message;
  } else {
    const RegionInfo& info = (*region)->info();
    if (info.place.kind == MemoryKind::kCuda) context_->watch.add(*region);
    answer.base = reinterpret_cast<std::uintptr_t>(info.base);
    answer.size = info.size;
    for (std::size_t i = 0; i < context_->transports().size(); ++i) {
      const auto& registration = (*region)->registration(i);
      if (!registration || !router_->may_be_usable(i)) continue;
      answer.keys.push_back(
          {std::string(context_->transports()[i].transport->name()), registration->export_key()});
    }
    // Without its keys the peer would take the region for one that no transport reaches.
    if (router_->over()) return;
  }
  send_(std::move(answer));
}

void RegionAnswers::on(const wire::RegionRevoked& revoked) {
  std::shared_ptr<Region> region;
  {
    MutexLock lock(mutex_);
    const auto found = revocations_.find(revoked.revocation);
    if (found == revocations_.end()) return;
    region = std::move(found->second);
    revocations_.erase(found);
  }
  region->answered();
}

Status RegionAnswers::on(wire::DigestQuery asked) {
  const auto kept = std::make_shared<const wire::DigestQuery>(std::move(asked));
  const wire::DigestQuery& query = *kept;
  const std::size_t ranges = query.addresses.size();
  std::uint64_t bytes = 0, counted = 0;
  bool many = ranges > wire::kMostDigestRanges || query.regions.size() > ranges || query.runs.size() > ranges;
  for (std::size_t i = 0; i != query.runs.size() && !many; ++i) {
    const wire::DigestRun& run = query.runs[i];
    many = run.size != 0 && run.ranges > (wire::kMostDigestBytes - bytes) / run.size;
    bytes += run.size * run.ranges;
    counted += run.ranges;
  }
  if (!many && counted != ranges) {
    return fail(ErrorCode::kProtocol, "a digest was asked for of {} ranges at {} addresses", counted, ranges);
  }
  if (!many) {
    MutexLock lock(mutex_);
    many = digesting_.size() >= wire::kMostDigestQueries || !digesting_.insert(query.query).second;
  }
  if (many) {
    return fail(ErrorCode::kProtocol, "a digest of too much was asked for, or too many at a time: {} ranges",
                ranges);
  }
  if (bytes <= kDigestedAtOnce) {
    const auto memory = memory_of(query);
    if (!memory || digested_at_once(memory->ranges)) return answer(query, memory), Status{};
  }
  // Memory is looked up no sooner than it is read, so that nobody who takes it back waits longer.
  const auto later = [self = shared_from_this(), kept] {
    guard_memory(
        "a digest for a peer", [&] { self->answer(*kept, self->memory_of(*kept)); },
        [&] { self->answer(*kept, fail(ErrorCode::kSystem, "{}", kOutOfMemory)); });
  };
  if (!context_->digesting.post(later)) later();
  return {};
}

Result<DigestedMemory> RegionAnswers::memory_of(const wire::DigestQuery& query) {
  DigestedMemory memory;
  std::vector<std::shared_ptr<Region>> regions;
  for (const wire::DigestRegion& named : query.regions) {
    auto region = context_->regions->find(RegionId{named.region}, named.key);
    if (!region) return tl::unexpected(region.error());
    if (Status may = may_read((*region)->info()); !may) return tl::unexpected(may.error());
    std::shared_ptr<const Registration> registration;
    for (std::size_t i = 0; i != context_->transports().size() && !registration; ++i) {
      registration = (*region)->registration(i);
    }
    AccessGuard guard(registration);  // each region has one
    if (!guard || !(*region)->alive()) {
      return fail(ErrorCode::kNotFound, "region {}: deregistered, or its memory was freed", named.region);
    }
    memory.guards.push_back(std::move(guard));
    regions.push_back(std::move(*region));
  }
  memory.ranges.reserve(query.addresses.size());
  auto address = query.addresses.begin();
  for (const wire::DigestRun& run : query.runs) {
    if (run.region >= regions.size()) {
      return fail(ErrorCode::kInvalidArgument, "no region {} of {} was named", run.region, regions.size());
    }
    const RegionInfo& info = regions[run.region]->info();
    for (const auto end = address + run.ranges; address != end; ++address) {
      if (!info.contains(*address, run.size)) {
        return fail(ErrorCode::kOutOfRange, "{} bytes at {:#x} do not lie in region {}", run.size, *address,
                    to_underlying(info.id));
      }
      const auto* const bytes = info.base + (*address - reinterpret_cast<std::uint64_t>(info.base));
      if (run.size != 0) memory.ranges.push_back({{bytes, run.size}, info.place});
    }
  }
  return memory;
}

void RegionAnswers::answer(const wire::DigestQuery& query, const Result<DigestedMemory>& memory) {
  Result<std::uint64_t> digest = memory ? context_->digest(memory->ranges) : tl::unexpected(memory.error());
  wire::DigestAnswer answer{.query = query.query};
  if (digest) {
    answer.digest = *digest;
  } else {
    answer.error = wire_code(digest.error().code);
    answer.message = digest.error().message;
  }
  {
    MutexLock lock(mutex_);
    digesting_.erase(query.query);
  }
  send_(answer);
}

void RegionAnswers::region_revoked(std::shared_ptr<Region> region) {
  std::uint64_t id = 0;
  std::shared_ptr<Fence> fence;
  {
    MutexLock lock(mutex_);
    fence = fence_;
    if (!closed_) {
      id = next_++;
      given_.erase(to_underlying(region->info().id));
      revocations_.emplace(id, region);
    }
  }
  if (!fence) return send_(wire::RegionRevoke{id, to_underlying(region->info().id)});
  region->remove_importer(*this, fence);
  region->answered();
}

// What a peer imported without a question it would keep until the connection ends.
void RegionAnswers::region_ended(const RegionInfo& region) {
  if (router_->wants_exported_key(region.place)) return;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
  }
  send_(wire::RegionRevoke{0, to_underlying(region.id)});
}

void RegionAnswers::close(const std::shared_ptr<Fence>& fence) {
  context_->regions->remove_importer(*this);
  std::unordered_map<std::uint64_t, std::shared_ptr<Region>> revocations;
  std::unordered_set<std::uint32_t> given;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    fence_ = fence;
    revocations.swap(revocations_);
    given.swap(given_);
  }
  // The peer may write to what it imported although nobody speaks to it any more.
  for (const auto& [revocation, region] : revocations) {
    region->remove_importer(*this, fence);
    region->answered();
  }
  for (const std::uint32_t id : given) {
    if (const auto region = context_->regions->find(RegionId{id})) region->remove_importer(*this, fence);
  }
}

}  // namespace p2p::engine
