// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "abi/types.h"
#include "p2p/memory.h"
#include "peer.h"

namespace p2p::nixl {

/// Memory that my agent registered.
class LocalMemory final : public nixlBackendMD {
 public:
  explicit LocalMemory(MemoryRegion region) : region_(std::move(region)), id_(region_.id()) {}

  RegionId id() const { return id_; }
  RegionDescriptor descriptor() const { return region_.descriptor(); }

  /// See MemoryRegion::release.
  Status release(std::chrono::nanoseconds timeout) { return region_.release(timeout); }

 private:
  MemoryRegion region_;
  const RegionId id_;
};

/// Memory of a peer (or of mine, for transfers within the agent), as the remote side of a transfer.
/// Thread-safe.
class RemoteMemory final : public nixlBackendMD {
 public:
  RemoteMemory(std::shared_ptr<Peer> peer, const RegionDescriptor& descriptor)
      : peer_(std::move(peer)), descriptor_(descriptor) {}

  const Peer* peer() const { return peer_.get(); }

  /// What the memory is called on a link of its peer.
  Result<RemoteRegionId> import(const Peer::Link& link) const;

 private:
  const std::shared_ptr<Peer> peer_;
  const RegionDescriptor descriptor_;
  mutable std::atomic<std::uint64_t> imported_{0};  // number of the link and id, 32 bits each
};

/// What a peer published for a range: kInvalidArgument for what is no description of just that range.
Result<RegionDescriptor> parse_public_data(const nixlBlobDesc& range, nixl_mem_t kind);

/// kInvalidArgument unless memory that an agent calls `kind` can lie in `place`.
Status check_place(nixl_mem_t kind, const MemoryPlace& place);

}  // namespace p2p::nixl
