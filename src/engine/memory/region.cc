// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/memory/region.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/futex.h"
#include "base/guarded_copy.h"
#include "base/log.h"
#include "base/shared_memory.h"
#include "base/thread.h"
#include "base/underlying.h"
#include "drivers/crypto/crypto.h"
#include "engine/memory/fence.h"

namespace p2p::engine {
namespace {

// Sleeps until `count` is zero; whoever makes it zero wakes.
bool wait_zero(const std::atomic<std::uint32_t>& count, std::chrono::steady_clock::time_point deadline) {
  while (const std::uint32_t now = count.load(std::memory_order_acquire)) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    futex_wait(count, now, deadline);
  }
  return true;
}

Status check(const RegionOptions& options) {
  if (std::ranges::find(options.peers, std::string()) != options.peers.end()) {
    return fail(ErrorCode::kInvalidArgument, "register memory for named peers: one of the names is empty");
  }
  if (options.expires && *options.expires <= std::chrono::nanoseconds::zero()) {
    return fail(ErrorCode::kInvalidArgument,
                "register memory that expires: after {} ns, which is no time to come",
                options.expires->count());
  }
  return {};
}

Result<std::shared_ptr<Registration>> register_with(Transport& transport, const RegionInfo& info) {
  const Guard guard = transport.capabilities().guard;
  if (info.read_only() && guard == Guard::kNobody) {
    return fail(ErrorCode::kUnavailable, "the region is read-only, and peers reach memory by themselves");
  }
  if (info.expires() && guard != Guard::kOwner) {
    return fail(ErrorCode::kUnavailable,
                "the region expires, and peers reach memory without its owner's engine");
  }
  return transport.register_memory(info);
}

}  // namespace

Region::Region(std::shared_ptr<RegionTable> table, const RegionInfo& info, Incarnation incarnation,
               std::vector<std::shared_ptr<Registration>> registrations, std::vector<std::string> reasons)
    : table_(std::move(table)),
      info_(info),
      incarnation_(incarnation),
      registrations_(std::move(registrations)),
      reasons_(std::move(reasons)) {}

std::string Region::reason(std::size_t transport) const {
  const auto& unusable = table_->transports()[transport].unusable;
  if (unusable) return *unusable;
  return transport < reasons_.size() ? reasons_[transport] : std::string();
}

bool Region::alive() const {
  return std::all_of(registrations_.begin(), registrations_.end(),
                     [](const auto& registration) { return !registration || registration->check_alive(); });
}

Status Region::check_whole() const {
  for (const auto& registration : registrations_) {
    if (registration) return registration->check_whole();
  }
  return {};
}

std::chrono::nanoseconds Region::revoke_timeout() const { return table_->revoke_timeout(); }

Status Region::check_process() const { return table_->check_process(); }

void Region::remove_user() {
  if (users_.fetch_sub(1, std::memory_order_acq_rel) == 1) futex_wake_all(users_);
}

bool Region::add_importer(const std::shared_ptr<RegionImporter>& importer) {
  MutexLock lock(mutex_);
  if (revoked_) return false;
  importers_.insert_or_assign(importer.get(), importer);
  return true;
}

void Region::remove_importer(const RegionImporter& importer, const std::shared_ptr<Fence>& fence) {
  {
    MutexLock lock(mutex_);
    importers_.erase(&importer);
  }
  stay_behind(fence);
}

void Region::stay_behind(const std::shared_ptr<Fence>& fence) {
  MutexLock lock(mutex_);
  std::erase_if(fences_, [](const auto& one) { return one->passed(); });
  if (!fence->passed()) fences_.push_back(fence);
}

void Region::answered() {
  if (unanswered_.fetch_sub(1, std::memory_order_acq_rel) == 1) futex_wake_all(unanswered_);
}

bool Region::wait_fences(std::chrono::steady_clock::time_point deadline) {
  std::vector<std::shared_ptr<Fence>> fences;
  {
    MutexLock lock(mutex_);
    fences = fences_;
  }
  if (!std::all_of(fences.begin(), fences.end(), [&](const auto& fence) { return fence->wait(deadline); })) {
    return false;
  }
  MutexLock lock(mutex_);
  std::erase_if(fences_, [](const auto& one) { return one->passed(); });
  return true;
}

bool Region::withhold() {
  std::vector<std::shared_ptr<RegionImporter>> importers;
  bool first = false;
  {
    MutexLock lock(mutex_);
    first = !std::exchange(revoked_, true);
    for (const auto& [address, weak] : std::exchange(importers_, {})) {
      if (auto importer = weak.lock()) importers.push_back(std::move(importer));
    }
    unanswered_.fetch_add(static_cast<std::uint32_t>(importers.size()));
  }
  for (std::size_t i = 0; first && i < registrations_.size(); ++i) {
    if (registrations_[i]) table_->transports()[i].transport->revoke_memory(*registrations_[i]);
  }
  // An answer keeps the region: until it is there, so are the registrations that the peer may still use.
  for (const auto& importer : importers) importer->region_revoked(shared_from_this());
  if (first) table_->tell_ended(info_, importers);
  return first;
}

bool Region::revoke(std::chrono::steady_clock::time_point deadline) {
  table_->remove(info_.id);
  withhold();
  const bool unaccessed = std::all_of(
      registrations_.begin(), registrations_.end(),
      [&](const auto& registration) { return !registration || registration->wait_unaccessed(deadline); });
  return unaccessed && wait_zero(unanswered_, deadline) && wait_fences(deadline);
}

void Region::drop() {
  // The parent's: the table keeps it, and all that it holds, as it is.
  if (!table_->check_process()) return;
  const bool waits = !on_engine_thread() && revoke_timeout().count() != 0;
  if (revoke(waits ? deadline_after(revoke_timeout()) : std::chrono::steady_clock::now())) return;
  log(LogLevel::kWarning,
      "region {} ({} bytes at {}) was dropped {} while a peer may still use it: its memory has to stay; "
      "MemoryRegion::release says when it may go",
      to_underlying(info_.id), info_.size, fmt::ptr(info_.base), waits ? "and waited for" : "without a wait");
}

bool Region::wait_unused(std::chrono::steady_clock::time_point deadline) {
  return wait_zero(users_, deadline);
}

HeldRegions::~HeldRegions() {
  if (first_) first_->remove_user();
  for (const auto& [id, region] : others_) region->remove_user();
}

void HeldRegions::add(const std::shared_ptr<Region>& region) {
  if (first_ == region) return;
  if (!first_) {
    first_ = region;
  } else if (!others_.try_emplace(to_underlying(region->info().id), region).second) {
    return;
  }
  region->add_user();
}

std::shared_ptr<Region> HeldRegions::find(RegionId id) const {
  if (first_ && first_->info().id == id) return first_;
  const auto found = others_.find(to_underlying(id));
  return found == others_.end() ? nullptr : found->second;
}

RegionTable::RegionTable(TransportList transports, Incarnation incarnation,
                         std::chrono::nanoseconds revoke_timeout)
    : transports_(std::move(transports)), incarnation_(incarnation), revoke_timeout_(revoke_timeout) {}

Status RegionTable::forked_off() {
  return fail(ErrorCode::kUnavailable,
              "use an endpoint: it belongs to the process that this one was forked off");
}

void RegionTable::add_importer(const std::shared_ptr<RegionImporter>& importer) {
  const std::unique_lock lock(mutex_);
  importers_.insert_or_assign(importer.get(), importer);
}

void RegionTable::remove_importer(const RegionImporter& importer) {
  const std::unique_lock lock(mutex_);
  importers_.erase(&importer);
}

void RegionTable::tell_ended(const RegionInfo& region,
                             const std::vector<std::shared_ptr<RegionImporter>>& gave) const {
  std::vector<std::shared_ptr<RegionImporter>> others;
  {
    const std::shared_lock lock(mutex_);
    for (const auto& [address, weak] : importers_) {
      if (auto importer = weak.lock()) others.push_back(std::move(importer));
    }
  }
  for (const auto& importer : others) {
    if (std::find(gave.begin(), gave.end(), importer) == gave.end()) importer->region_ended(region);
  }
}

Status RegionTable::name(RegionInfo& info) {
  auto key = keys_.draw();
  if (!key) return tl::unexpected(key.error());
  info.id = RegionId{next_.fetch_add(1)};
  info.key = *key;
  return {};
}

Status RegionTable::name_again(RegionInfo& info, const RegionDescriptor& before) const {
  const bool alike = before.incarnation == incarnation_ && before.size == info.size &&
                     before.address == reinterpret_cast<std::uintptr_t>(info.base) &&
                     before.place == info.place && before.region != RegionId{} &&
                     to_underlying(before.region) < next_.load();
  if (!alike || find(before.region)) {
    return fail(ErrorCode::kInvalidArgument, "register {} ({} bytes) again as region {}: {}",
                fmt::ptr(info.base), info.size, to_underlying(before.region),
                alike ? "that is still registered" : "that was other memory");
  }
  info.id = before.region;
  info.key = before.key;
  return {};
}

Result<std::shared_ptr<Region>> RegionTable::add(void* data, std::size_t size, MemoryPlace place,
                                                 const RegionOptions& options) {
  if (Status here = check_process(); !here) return tl::unexpected(here.error());
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if ((data == nullptr && size != 0) || address + size < address) {
    return fail(ErrorCode::kInvalidArgument, "register {} ({} bytes): not a range of memory", data, size);
  }
  RegionInfo info{RegionId{}, {}, static_cast<std::byte*>(data), size, place};
  if (Status sound = check(options); !sound) return tl::unexpected(sound.error());
  if (options.read_only || !options.peers.empty() || options.expires) info.restrict_to(options);
  if (place.kind == MemoryKind::kHost) {
    look_after_guard();
    info.shared = SharedMemory::find(data, size);
  }
  const Status named = options.again ? name_again(info, *options.again) : name(info);
  if (!named) return tl::unexpected(named.error());

  std::vector<std::shared_ptr<Registration>> registrations(transports_.size());
  std::vector<std::string> reasons;  // as many as there are transports once there is one
  std::string why;
  bool any = size == 0;
  if (any) reasons.assign(transports_.size(), "the region has no bytes");  // no transport is asked
  for (std::size_t i = 0; i < transports_.size() && size != 0; ++i) {
    if (transports_[i].unusable) continue;
    auto registration = register_with(*transports_[i].transport, info);
    if (registration) {
      registrations[i] = std::move(*registration);
      any = true;
      continue;
    }
    reasons.resize(transports_.size());
    reasons[i] = registration.error().message;
    why += fmt::format("{}{}: {}", why.empty() ? "" : "; ", transports_[i].transport->name(), reasons[i]);
  }
  if (!any) {
    return fail(ErrorCode::kUnavailable, "register {} ({} bytes): no transport takes this memory ({})", data,
                size, why.empty() ? "none is usable" : why);
  }
  auto region = std::make_shared<Region>(shared_from_this(), info, incarnation_, std::move(registrations),
                                         std::move(reasons));
  const std::unique_lock lock(mutex_);
  regions_.emplace(to_underlying(info.id), region);
  bytes_ += size;
  return region;
}

std::shared_ptr<Region> RegionTable::find(RegionId id) const {
  const std::shared_lock lock(mutex_);
  const auto found = regions_.find(to_underlying(id));
  return found == regions_.end() ? nullptr : found->second;
}

Result<std::shared_ptr<Region>> RegionTable::find(RegionId id, const RegionKey& key) const {
  auto region = find(id);
  if (!region) {
    return fail(ErrorCode::kNotFound, "region {}: not registered, or deregistered", to_underlying(id));
  }
  if (!crypto::equal(region->info().key, key)) {
    return fail(ErrorCode::kPermissionDenied, "region {}: wrong key", to_underlying(id));
  }
  return region;
}

void RegionTable::remove(RegionId id) {
  const std::unique_lock lock(mutex_);
  const auto node = regions_.extract(to_underlying(id));
  if (node) bytes_ -= node.mapped()->info().size;
}

}  // namespace p2p::engine

namespace p2p {

MemoryRegion::MemoryRegion(std::shared_ptr<engine::Region> region) : region_(std::move(region)) {}

MemoryRegion& MemoryRegion::operator=(MemoryRegion&& other) noexcept {
  if (this != &other) {
    const MemoryRegion old(std::move(region_));
    region_ = std::move(other.region_);
  }
  return *this;
}

MemoryRegion::~MemoryRegion() {
  if (region_) region_->drop();
}

RegionId MemoryRegion::id() const { return region_->info().id; }
std::byte* MemoryRegion::data() const { return region_->info().base; }
std::size_t MemoryRegion::size() const { return region_->info().size; }
MemoryPlace MemoryRegion::place() const { return region_->info().place; }
bool MemoryRegion::alive() const { return region_ && region_->alive(); }
LocalSpan MemoryRegion::span() const { return {id(), data(), size()}; }
LocalSpan MemoryRegion::span(std::size_t offset, std::size_t size) const {
  return {id(), data() + offset, size};
}

RegionDescriptor MemoryRegion::descriptor() const {
  const RegionInfo& info = region_->info();
  return {reinterpret_cast<std::uintptr_t>(info.base),
          info.size,
          info.place,
          info.id,
          info.key,
          region_->incarnation()};
}

Status MemoryRegion::release(std::chrono::nanoseconds timeout) {
  if (!region_) return {};  // released before
  if (Status here = region_->check_process(); !here) return here;
  const auto deadline = deadline_after(timeout);
  const auto may_still_write = [this] {
    return fail(ErrorCode::kTimedOut, "release region {}: the peer may still write here",
                to_underlying(id()));
  };
  if (!region_->revoke(deadline)) return may_still_write();
  if (!region_->wait_unused(deadline)) {
    return fail(ErrorCode::kTimedOut, "release region {}: local transfers still use it", to_underlying(id()));
  }
  // A transfer that has failed meanwhile may have left the peer at work.
  if (!region_->revoke(deadline)) return may_still_write();
  region_.reset();
  return {};
}

}  // namespace p2p
