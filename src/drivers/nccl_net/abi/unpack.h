// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// Structures of devices of type UNPACK: where the bytes of a finished receive lie.
namespace p2p::nccl_net::abi {

/// Lists per comm; the n-th receive of a comm (from 0) uses list n mod 16.
inline constexpr std::size_t kUnpackSlots = 16;
/// Entries per list.
inline constexpr std::size_t kUnpackEntries = 2048;

/// `size` bytes at `source` of the pool belong at `destination`, counted from the receive's own pointer.
struct UnpackEntry {
  std::uint32_t source;
  std::uint32_t size;
  std::uint64_t destination;
};
static_assert(sizeof(UnpackEntry) == 16 && offsetof(UnpackEntry, destination) == 8);

/// Readable by host and device. `count[slot]` is valid, and the entries with it, once the receive is done.
struct UnpackLists {
  UnpackEntry entries[kUnpackSlots][kUnpackEntries];
  std::uint64_t count[kUnpackSlots];
};
static_assert(sizeof(UnpackLists) == 524416 && offsetof(UnpackLists, count) == 524288);

/// What DeviceHandle::handle points to.
struct UnpackDevice {
  UnpackLists* lists;
  std::byte* pool;
  std::uint64_t head;  ///< the device's own counter; starts at 2^64 - 1
};
static_assert(sizeof(UnpackDevice) == 24 && offsetof(UnpackDevice, pool) == 8);

}  // namespace p2p::nccl_net::abi
