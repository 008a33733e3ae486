// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "drivers/nccl_net/comm.h"

namespace p2p::nccl_net {

/// Plugins register memory with one comm, so each comm has its own registrations: made at first use, by the
/// number that the memory's owner gave it. Used by the comm's thread.
class RegistrationCache {
 public:
  explicit RegistrationCache(std::shared_ptr<Comm> comm) : comm_(std::move(comm)) {}

  /// CUDA memory is registered by whole pages around it.
  Result<const MemoryHandle*> find(std::uint64_t number, std::byte* data, std::size_t size,
                                   abi::PointerType type) {
    if (const auto found = handles_.find(number); found != handles_.end()) return &found->second;
    MemoryRange range{data, size};
    if (type == abi::kPointerCuda) range = page_range(data, size);
    auto handle = register_with(comm_, range.data, range.size, type);
    if (!handle) return tl::unexpected(handle.error());
    return &handles_.emplace(number, std::move(*handle)).first->second;
  }

  /// Deregisters it.
  void forget(std::uint64_t number) { handles_.erase(number); }

 private:
  std::shared_ptr<Comm> comm_;
  std::map<std::uint64_t, MemoryHandle> handles_;
};

}  // namespace p2p::nccl_net
