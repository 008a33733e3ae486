// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "gpu.h"
#include "p2p/endpoint.h"
#include "p2p/memory.h"
#include "p2p/result.h"

namespace p2p::perf {

/// `--memory` for memory of p2p/shared_memory.h.
inline constexpr std::string_view kSharedMemory = "shared";

/// Owns memory with all of its pages present, `shared`: such that other containers can map. Movable.
class Pages {
 public:
  static Result<Pages> allocate(std::size_t size, bool shared = false);

  Pages() = default;
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;
  ~Pages();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit Pages(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
  std::shared_ptr<std::byte> shared_;  ///< null: mapped here
};

/// Owns memory of a place (GpuKind::parse, or "shared") and its registration with an endpoint, which must
/// outlive it.
class Buffer {
 public:
  static Result<Buffer> allocate(Endpoint& endpoint, const std::string& place, std::size_t size);

  /// The memory itself on the host; for a GPU, the host's copy of it.
  std::span<std::byte> bytes() const { return pages_.bytes(); }

  /// Brings the memory to what `bytes` hold, and the reverse. Nothing to do on the host.
  Status publish() const { return gpu_ ? gpu_.store(bytes()) : Status(); }
  Status fetch() const { return gpu_ ? gpu_.load(bytes()) : Status(); }

  const MemoryRegion& region() const { return region_; }

 private:
  Pages pages_;
  GpuMemory gpu_;
  MemoryRegion region_;  // let go before the memory
};

/// Registers a little memory of `place`, to keep for the endpoint's life: net plugins take the NICs beside
/// the GPU whose memory they get first, and connections choose them.
Result<Buffer> place_endpoint(Endpoint& endpoint, const std::string& place);

}  // namespace p2p::perf
