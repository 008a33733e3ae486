// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "p2p/memory.h"
#include "p2p/region_options.h"
#include "p2p/result.h"
#include "transport/batch.h"

namespace p2p {

class SharedMemory;

/// A registered range as every layer sees it.
struct RegionInfo {
  RegionId id{};
  RegionKey key{};
  std::byte* base = nullptr;
  std::uint64_t size = 0;  ///< bytes
  MemoryPlace place;
  std::shared_ptr<const SharedMemory> shared{};    ///< host memory that it lies in, if others may map that
  std::shared_ptr<const RegionOptions> options{};  ///< null: any peer with the key may read and write
  std::chrono::steady_clock::time_point expires_at = std::chrono::steady_clock::time_point::max();

  /// What peers may do, and from now on for how long.
  void restrict_to(const RegionOptions& rights);

  /// Peers may not write.
  bool read_only() const { return options && options->read_only; }

  /// Peers may not use it for ever.
  bool expires() const { return expires_at != std::chrono::steady_clock::time_point::max(); }

  /// kPermissionDenied, naming the region, once it has expired.
  Status check_unexpired() const;

  /// kPermissionDenied, naming region, peer and cause, if the options keep `peer` from the operation now.
  Status check(Operation operation, std::string_view peer) const;

  /// True if `length` bytes at `address` lie within the range. Safe against overflow.
  bool contains(std::uint64_t address, std::uint64_t length) const {
    const auto begin = reinterpret_cast<std::uint64_t>(base);
    if (address < begin) return false;
    const std::uint64_t offset = address - begin;
    return offset <= size && length <= size - offset;
  }
};

/// A transport's handle on my memory; transports derive from it to keep what they need (an ibv_mr, an IPC
/// handle). Shared by the region, the transfers under way on it and peers' accesses. Thread-safe.
class Registration {
 public:
  explicit Registration(const RegionInfo& info) : info_(info) {}
  virtual ~Registration() = default;
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  const RegionInfo& info() const { return info_; }

  /// What a peer's `Transport::import_region` needs besides the region's info; sent over the session to
  /// peers that hold the key.
  virtual std::vector<std::byte> export_key() const { return {}; }

  /// kNotFound if the program has freed the memory since it was registered, as far as that can be told. To be
  /// asked before a device touches it, whoever asked for it: a stranger may have it by now, or nobody.
  virtual Status check_alive() const { return {}; }

  /// The same with a look at all of it, which takes as long as the memory is large: not on the data path.
  virtual Status check_whole() const { return check_alive(); }

  bool contains(std::uint64_t address, std::uint64_t size) const { return info_.contains(address, size); }

  /// No access (AccessGuard) begins after this returns; `wait_unaccessed` tells when none is going on.
  void revoke() const;

  /// After `revoke`: waits until no access is going on; false if one still was at `deadline`.
  bool wait_unaccessed(std::chrono::steady_clock::time_point deadline) const;

 private:
  friend class AccessGuard;
  bool begin_access() const;
  void end_access() const;

  RegionInfo info_;
  mutable std::atomic<std::uint32_t> accesses_{0};  // top bit: revoked
};

/// An access of a peer to memory of mine: its bytes may be moved only while a guard is held. Keep it short
/// (one system call, one kernel launch and its end): whoever takes the memory back waits for it.
class AccessGuard {
 public:
  /// False if the registration, which outlives the guard, was revoked.
  explicit AccessGuard(const Registration& registration)
      : registration_(registration.begin_access() ? &registration : nullptr) {}

  /// The same, and keeps the registration.
  explicit AccessGuard(std::shared_ptr<const Registration> registration) : AccessGuard(*registration) {
    owner_ = std::move(registration);
  }

  AccessGuard(AccessGuard&& other) noexcept
      : registration_(std::exchange(other.registration_, nullptr)), owner_(std::move(other.owner_)) {}
  AccessGuard& operator=(AccessGuard&& other) noexcept {
    std::swap(registration_, other.registration_);
    std::swap(owner_, other.owner_);
    return *this;
  }
  ~AccessGuard() {
    if (registration_ != nullptr) registration_->end_access();
  }

  explicit operator bool() const { return registration_ != nullptr; }

 private:
  const Registration* registration_;
  std::shared_ptr<const Registration> owner_;
};

/// Appends a guard for each registration. kNotFound, and none appended, if one of them was revoked.
Status begin_accesses(std::span<const std::shared_ptr<Registration>> registrations,
                      std::vector<AccessGuard>& guards);

/// The regions that peers may name to one transport. Thread-safe.
class RegistrationTable {
 public:
  void add(std::shared_ptr<Registration> registration);

  /// After this `find` does not return it and no access to it begins. If its memory was freed, peers that ask
  /// for it are told so for a while.
  void revoke(const Registration& registration);

  /// The registration if `key` is its key and the range lies within it; kNotFound, kPermissionDenied or
  /// kOutOfRange, naming region and range, otherwise.
  Result<std::shared_ptr<Registration>> find(RegionId id, const RegionKey& key, std::uint64_t address,
                                             std::uint64_t size) const;

 private:
  struct Lost {
    RegionId id{};
    RegionKey key{};
    Error why;
  };

  // What became of the latest, so that a program that frees much costs no memory.
  static constexpr std::size_t kMostLost = 64;

  mutable std::shared_mutex mutex_;
  std::unordered_map<std::uint32_t, std::shared_ptr<Registration>> registrations_;
  std::deque<Lost> lost_;
};

/// A transport's handle on a peer's region. Transports derive from it to keep what they need (an rkey, an
/// opened IPC handle). `base` is null and `size` 0 in `info` where the peer was not asked.
class RemoteKey {
 public:
  explicit RemoteKey(const RegionInfo& info) : info_(info) {}
  virtual ~RemoteKey() = default;
  RemoteKey(const RemoteKey&) = delete;
  RemoteKey& operator=(const RemoteKey&) = delete;

  const RegionInfo& info() const { return info_; }

  /// The owner took the region back and nothing here uses it any more, or will: what keeps the owner's memory
  /// may be let go.
  virtual void retire() const {}

 private:
  RegionInfo info_;
};

}  // namespace p2p
