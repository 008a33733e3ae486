// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/registration.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/futex.h"
#include "drivers/crypto/crypto.h"

namespace p2p {

namespace {

constexpr std::uint32_t kRevoked = std::uint32_t{1} << 31;

}  // namespace

void RegionInfo::restrict_to(const RegionOptions& rights) {
  options = std::make_shared<const RegionOptions>(rights);
  if (rights.expires) expires_at = deadline_after(*rights.expires);
}

Status RegionInfo::check_unexpired() const {
  if (!expires() || std::chrono::steady_clock::now() < expires_at) return {};
  return fail(ErrorCode::kPermissionDenied, "region {}: it has expired, its owner gave it {} ms",
              static_cast<std::uint32_t>(id),
              std::chrono::duration_cast<std::chrono::milliseconds>(*options->expires).count());
}

Status RegionInfo::check(Operation operation, std::string_view peer) const {
  if (!options) return {};
  const auto& named = options->peers;
  if (!named.empty() && std::ranges::find(named, peer) == named.end()) {
    return fail(ErrorCode::kPermissionDenied,
                "region {}: it is registered for named peers, and '{}' is none of them",
                static_cast<std::uint32_t>(id), peer);
  }
  if (Status in_time = check_unexpired(); !in_time) return in_time;
  if (read_only() && operation == Operation::kWrite) {
    return fail(ErrorCode::kPermissionDenied, "region {}: it is registered read-only, '{}' may not write",
                static_cast<std::uint32_t>(id), peer);
  }
  return {};
}

bool Registration::begin_access() const {
  std::uint32_t accesses = accesses_.load(std::memory_order_relaxed);
  do {
    if ((accesses & kRevoked) != 0) return false;
  } while (!accesses_.compare_exchange_weak(accesses, accesses + 1, std::memory_order_acquire,
                                            std::memory_order_relaxed));
  return true;
}

void Registration::end_access() const {
  if (accesses_.fetch_sub(1, std::memory_order_release) == (kRevoked | 1)) futex_wake_all(accesses_);
}

void Registration::revoke() const { accesses_.fetch_or(kRevoked, std::memory_order_acquire); }

bool Registration::wait_unaccessed(std::chrono::steady_clock::time_point deadline) const {
  while (const std::uint32_t accesses = accesses_.load(std::memory_order_acquire) & ~kRevoked) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    futex_wait(accesses_, accesses | kRevoked, deadline);
  }
  return true;
}

Status begin_accesses(std::span<const std::shared_ptr<Registration>> registrations,
                      std::vector<AccessGuard>& guards) {
  const std::size_t before = guards.size();
  for (const std::shared_ptr<Registration>& registration : registrations) {
    if (guards.emplace_back(registration)) continue;
    guards.erase(guards.begin() + static_cast<std::ptrdiff_t>(before), guards.end());
    if (Status alive = registration->check_alive(); !alive) return alive;
    return fail(ErrorCode::kNotFound, "region {} was deregistered during the transfer",
                static_cast<std::uint32_t>(registration->info().id));
  }
  return {};
}

void RegistrationTable::add(std::shared_ptr<Registration> registration) {
  const auto id = static_cast<std::uint32_t>(registration->info().id);
  const std::unique_lock lock(mutex_);
  registrations_.insert_or_assign(id, std::move(registration));
}

void RegistrationTable::revoke(const Registration& registration) {
  const RegionInfo& info = registration.info();
  Status alive = registration.check_alive();
  {
    const std::unique_lock lock(mutex_);
    registrations_.erase(static_cast<std::uint32_t>(info.id));
    if (!alive) lost_.push_back({info.id, info.key, std::move(alive.error())});
    if (lost_.size() > kMostLost) lost_.pop_front();
  }
  registration.revoke();
}

Result<std::shared_ptr<Registration>> RegistrationTable::find(RegionId id, const RegionKey& key,
                                                              std::uint64_t address,
                                                              std::uint64_t size) const {
  const auto number = static_cast<std::uint32_t>(id);
  std::shared_ptr<Registration> registration;
  {
    const std::shared_lock lock(mutex_);
    if (const auto found = registrations_.find(number); found != registrations_.end()) {
      registration = found->second;
    } else if (const auto lost = std::ranges::find(lost_, id, &Lost::id);
               lost != lost_.end() && crypto::equal(lost->key, key)) {
      return tl::unexpected(lost->why);
    }
  }
  if (!registration) {
    return fail(ErrorCode::kNotFound, "access {} bytes at {:#x} of region {}: no such region (any more)",
                size, address, number);
  }
  if (!crypto::equal(registration->info().key, key)) {
    return fail(ErrorCode::kPermissionDenied, "access {} bytes at {:#x} of region {}: the key is wrong", size,
                address, number);
  }
  if (!registration->contains(address, size)) {
    const RegionInfo& info = registration->info();
    return fail(ErrorCode::kOutOfRange, "access {} bytes at {:#x} of region {}: it has {} bytes at {:#x}",
                size, address, number, info.size, reinterpret_cast<std::uint64_t>(info.base));
  }
  return registration;
}

}  // namespace p2p
