// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/process_id.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/ipc.h"
#include "p2p/result.h"

namespace p2p::cuda_ipc {

/// One device allocation as another process needs it.
struct SharedMemory {
  ProcessId owner;
  cuda::DeviceUuid device{};
  cuda::IpcHandle handle{};
  std::uint64_t base = 0;  ///< of the allocation, in the owner's address space
  std::uint64_t size = 0;  ///< bytes of the allocation
  std::uint64_t buffer_id = 0;
};

/// Random bytes: a name that nobody guesses, or a secret.
using Token = std::array<std::byte, 16>;

/// Where descriptors are fetched (chunk_fetch.h), which do not travel in keys.
struct Ticket {
  Token server{};            ///< in the name of the owner's Unix socket
  std::uint64_t number = 0;  ///< of what is offered there
  Token secret{};            ///< whoever knows it may have that
  friend auto operator<=>(const Ticket&, const Ticket&) = default;
};

/// A region of memory that was mapped chunk by chunk.
struct ChunkedMemory {
  ProcessId owner;
  cuda::DeviceUuid device{};
  Ticket ticket;
  std::uint64_t base = 0;   ///< of the first chunk, in the owner's address space
  std::uint64_t size = 0;   ///< bytes of all chunks
  std::uint32_t count = 0;  ///< chunks
};

/// For a ring that the owner leases (ring_leases.h), by which bytes come to and go from memory that nobody
/// else can be given.
struct RingTicket {
  ProcessId owner;
  Ticket ticket;
  friend auto operator<=>(const RingTicket&, const RingTicket&) = default;
};

/// An allocation of the owner, this one among all that it ever made, named by somebody who has its handle.
struct AllocationId {
  std::uint64_t base = 0;
  std::uint64_t buffer_id = 0;
  cuda::IpcHandle handle{};
  friend auto operator<=>(const AllocationId&, const AllocationId&) = default;
};

/// CUDA puts small allocations together into blocks of this size and maps a block into a process only once.
inline constexpr unsigned kBlockBits = 21;

/// Of the allocations in one block, as many as a key names.
inline constexpr std::size_t kMaxNeighbours = 16;

/// A region of more chunks is refused.
inline constexpr std::uint32_t kMaxChunks = 1U << 18;

/// What a registration exports: the memory around it or the chunks under it, or why it cannot be shared.
struct ExportedKey {
  std::optional<SharedMemory> memory;
  std::optional<ChunkedMemory> chunks;  ///< one of the two at most

  /// Allocations that were there in the same block when this was written: whoever has mapped one of them has
  /// mapped this one, too.
  std::vector<AllocationId> neighbours;

  /// With a refusal: the memory is there, and the owner itself can copy to and from it.
  bool is_private = false;

  /// With private memory, and with an allocation that some processes may not be able to open.
  std::optional<RingTicket> ring;
  std::string refusal;  ///< set where neither is; at most 400 bytes arrive
};

/// Where a channel can meet its twin (twin_link.h).
struct TwinAddress {
  std::uint64_t place = 0;  ///< as socket::Place::number gives it
  Token listener{};         ///< of the side that accepted the session; the other one, which dials, has zeros
};

/// What a channel tells its peer: who it is, and memory with which to try whether sharing works.
struct ChannelAddress {
  ProcessId process;
  std::optional<SharedMemory> probe;  ///< none where the process has no CUDA context yet
  std::optional<TwinAddress> twin;    ///< absent: it meets none
};

Bytes encode(const ExportedKey& key);
Bytes encode(const ChannelAddress& address);

/// kProtocol unless the bytes are what `encode` made.
Result<ExportedKey> decode_key(ByteView bytes);
Result<ChannelAddress> decode_address(ByteView bytes);

}  // namespace p2p::cuda_ipc
