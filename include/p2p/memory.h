// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "p2p/api.h"
#include "p2p/result.h"

namespace p2p {

namespace engine {
class Region;
}

enum class MemoryKind : std::uint8_t { kHost = 0, kCuda = 1 };

/// Where memory lives. `device` is the CUDA ordinal in the process that owns it, -1 for host memory.
struct MemoryPlace {
  MemoryKind kind = MemoryKind::kHost;
  std::int32_t device = -1;
  friend bool operator==(const MemoryPlace&, const MemoryPlace&) = default;
};

/// Bytes from `data` to the end of the allocation of a GPU that it lies in; without bound for host memory. A
/// region that reaches beyond one allocation cannot go over NVLink, even where the next one touches it.
P2P_API std::uint64_t bytes_in_allocation(const void* data);

/// Names one registration of an endpoint; not reused within the endpoint's life but by
/// `RegionOptions::again`. Starts at 1.
enum class RegionId : std::uint32_t {};

/// Names one imported peer region of a connection. Starts at 1.
enum class RemoteRegionId : std::uint32_t {};

/// Tells one life of one endpoint from every other; drawn at random when the endpoint is made.
using Incarnation = std::uint64_t;

/// Proof of the right to use a region; drawn at random at registration, dead with it (`RegionOptions::again`
/// apart).
using RegionKey = std::array<std::byte, 16>;

/// A view of my registered memory: what a transfer reads from or writes to on this side.
struct LocalSpan {
  RegionId region{};
  std::byte* data = nullptr;
  std::size_t size = 0;  ///< bytes
};

/// A range of a peer's region that was imported into a connection (`Connection::import_region`).
struct RemoteSpan {
  RemoteRegionId region{};
  std::uint64_t address = 0;  ///< in the peer's address space
  std::size_t size = 0;       ///< bytes
};

/// The value that names a range of memory to other processes: ship its 64 bytes by any means. It stays
/// valid until the region is deregistered and may be narrowed by editing address and size.
///
/// Byte layout, little endian: 0 address u64; 8 size u32 (0xffffffff: see 48); 12 kind u8; 13 zero;
/// 14 device i16; 16 region u32; 20 zero u32; 24 key 16 bytes; 40 incarnation u64; 48 size u64;
/// 56 zero u32; 60 magic u32. Address and size stand first, where users of the 64-byte "FifoItem" edit them.
struct P2P_API RegionDescriptor {
  static constexpr std::size_t kBytes = 64;

  std::uint64_t address = 0;
  std::uint64_t size = 0;  ///< bytes
  MemoryPlace place;
  RegionId region{};
  RegionKey key{};
  Incarnation incarnation = 0;

  std::array<std::byte, kBytes> serialize() const;

  /// kInvalidArgument unless `bytes` are 64 bytes that `serialize` could have made.
  static Result<RegionDescriptor> parse(std::span<const std::byte> bytes);
};

/// Owns one registration: while it lives, peers that hold its descriptor may read and write the range.
/// Dropping it revokes that, and waits until no peer can touch the memory: for the keepalive time at most,
/// and not at all in a callback. The log warns if a peer may still write then; use `release` to be sure.
/// Movable, any thread.
class P2P_API MemoryRegion {
 public:
  MemoryRegion() = default;
  explicit MemoryRegion(std::shared_ptr<engine::Region> region);
  MemoryRegion(MemoryRegion&&) noexcept = default;
  MemoryRegion& operator=(MemoryRegion&& other) noexcept;
  ~MemoryRegion();

  RegionId id() const;
  std::byte* data() const;
  std::size_t size() const;  ///< bytes
  MemoryPlace place() const;

  /// False if device memory was freed while it is registered: transfers fail then, also if the address
  /// belongs to other memory now. Always true for host memory, where the system does not tell.
  bool alive() const;

  LocalSpan span() const;

  /// `size` bytes from `offset`; the range is checked when a transfer uses it.
  LocalSpan span(std::size_t offset, std::size_t size) const;

  /// What a peer needs to reach the whole region.
  RegionDescriptor descriptor() const;

  /// Revokes the peers' access and waits until none can touch the memory and no local transfer uses it.
  /// kTimedOut leaves the region revoked, registered and owned; the call may be repeated.
  Status release(std::chrono::nanoseconds timeout);

 private:
  std::shared_ptr<engine::Region> region_;
};

}  // namespace p2p
