// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "abi/types.h"
#include "p2p/endpoint.h"
#include "p2p/memory.h"
#include "peer.h"

namespace p2p::nixl {

/// Memory that my agent registered.
class LocalMemory final : public nixlBackendMD {
 public:
  LocalMemory(MemoryRegion region, bool read_only)
      : id_(region.id()),
        descriptor_(region.descriptor()),
        region_(std::move(region)),
        read_only_(read_only) {}

  RegionId id() const { return id_; }
  const RegionDescriptor& descriptor() const { return descriptor_; }

 private:
  friend class Registrations;

  const RegionId id_;
  const RegionDescriptor descriptor_;

  // With the mutex of the registrations held:
  MemoryRegion region_;
  unsigned count_ = 1;  // registrations that live; 0: given back, and kept to be the same if it comes again
  bool read_only_;
};

/// What an agent has registered. Agents take two descriptions of one range for an error, so registrations of
/// one range that live at the same time share a region, and one that comes again is described as before.
/// Thread-safe.
class Registrations {
 public:
  /// One more of a range. `read_only`: peers may not write; the same for all that live.
  Result<LocalMemory*> add(Endpoint& endpoint, const nixlBlobDesc& range, nixl_mem_t kind, bool read_only);

  /// One fewer. With the last one peers are shut out; kTimedOut leaves it registered while one of them may
  /// still write there, and the call can be made again. kNotFound for what is not registered (any more).
  Status remove(nixlBackendMD* memory, std::chrono::nanoseconds timeout);

 private:
  using Range = std::pair<std::uintptr_t, std::size_t>;

  /// Of so many ranges that were given back it is known how they were described.
  static constexpr std::size_t kMostIdle = std::size_t{1} << 16;

  /// The first of idle_, unless it has come again meanwhile.
  void forget(const std::shared_ptr<LocalMemory>& memory);

  std::mutex mutex_;
  std::unordered_map<const nixlBackendMD*, std::shared_ptr<LocalMemory>> all_;
  std::map<Range, std::shared_ptr<LocalMemory>> latest_;  // less those of which one is being given back
  std::deque<std::shared_ptr<LocalMemory>> idle_;         // given back, oldest first
};

/// Memory of a peer (or of mine, for transfers within the agent), as the remote side of a transfer.
/// Thread-safe.
class RemoteMemory final : public nixlBackendMD {
 public:
  RemoteMemory(std::shared_ptr<Peer> peer, const RegionDescriptor& descriptor)
      : peer_(std::move(peer)), descriptor_(descriptor) {}

  const Peer* peer() const { return peer_.get(); }

  /// What the memory is called on a link of its peer. `again`: asks anew if the owner had taken it back.
  Result<RemoteRegionId> import(const Peer::Link& link, bool again = false) const;

 private:
  const std::shared_ptr<Peer> peer_;
  const RegionDescriptor descriptor_;
  mutable std::atomic<std::uint64_t> imported_{0};  // number of the link and id, 32 bits each
};

/// Memory of peers that the agent has loaded. Agents unload some of it twice. Thread-safe.
class LoadedMemory {
 public:
  RemoteMemory* add(std::unique_ptr<RemoteMemory> memory);

  /// Nothing for what is not loaded (any more).
  void remove(const nixlBackendMD* memory);

 private:
  std::mutex mutex_;
  std::unordered_map<const nixlBackendMD*, std::unique_ptr<RemoteMemory>> all_;
};

/// What a peer published for a range: kInvalidArgument for what is no description of just that range.
Result<RegionDescriptor> parse_public_data(const nixlBlobDesc& range, nixl_mem_t kind);

/// kInvalidArgument unless memory that an agent calls `kind` can lie in `place`.
Status check_place(nixl_mem_t kind, const MemoryPlace& place);

}  // namespace p2p::nixl
