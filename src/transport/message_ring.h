// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/shared_memory.h"
#include "base/unique_fd.h"
#include "p2p/result.h"

/// Single-producer rings of message blocks in memory that two processes share. The other process may write
/// anything there at any time: a side trusts its own copy of its counts only, loads the peer's once and
/// checks them, and copies a block out before it looks at a byte of it.
namespace p2p {

/// Bytes of blocks that one direction holds.
inline constexpr std::size_t kRingBytes = std::size_t{256} << 10;

/// One direction as it lies in memory.
struct Ring {
  alignas(64) std::atomic<std::uint64_t> written;  ///< bytes, ever; by its writer
  alignas(64) std::atomic<std::uint64_t> read;     ///< by its reader
  std::atomic<std::uint32_t> wake_wanted;          ///< set by the reader: it sleeps
  alignas(64) std::byte bytes[kRingBytes];         // NOLINT(modernize-avoid-c-arrays): a layout
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

/// Bytes of so many pairs of rings.
constexpr std::size_t ring_bytes(unsigned pairs) { return std::size_t{2} * pairs * sizeof(Ring); }

/// Memory for pairs of rings, one of each pair for each direction, mapped.
class RingMemory {
 public:
  RingMemory() = default;

  /// New memory, and its descriptor for the peer. What nobody uses of it takes none.
  /// `more` bytes, which are not mapped, lie behind the rings.
  static Result<RingMemory> create(UniqueFd& descriptor, unsigned pairs = 1, std::size_t more = 0);

  /// The peer's; kProtocol if it is not as `create` makes it.
  static Result<RingMemory> open(const UniqueFd& descriptor, unsigned pairs = 1, std::size_t more = 0);

  /// 0: from the process that created it, 1: to it.
  Ring& direction(unsigned number, unsigned pair = 0) const;

 private:
  static Result<RingMemory> map(const UniqueFd& descriptor, unsigned pairs);

  MappedFile memory_;
};

class RingWriter {
 public:
  RingWriter() = default;
  explicit RingWriter(Ring& ring) : ring_(&ring) {}

  /// False: there is no room for the block. kProtocol: the reader's count cannot be.
  Result<bool> write(ByteView block);

  /// True, once, if the reader is to be woken for what was written.
  bool wake_due();

 private:
  void put(std::uint64_t at, ByteView bytes);

  Ring* ring_ = nullptr;
  std::uint64_t written_ = 0;
};

class RingReader {
 public:
  RingReader() = default;
  explicit RingReader(Ring& ring) : ring_(&ring) {}

  /// The next block, in place of what `block` held; false: there is none. kProtocol: what the writer left is
  /// no ring.
  Result<bool> read(Bytes& block);

  /// The reader sleeps until it is woken; false if there is something to read after all.
  bool arm_events();

  /// The reader polls: the writer need not wake it.
  void enter_polling() {
    if (std::exchange(armed_, false) && ring_->wake_wanted.exchange(0) == 0) ++wakes_;
  }

  /// Wake-ups that the writer has sent, or is about to, less those noted.
  std::uint64_t wakes() const { return wakes_; }
  void note_wakes(std::uint64_t count) { wakes_ -= std::min(wakes_, count); }

 private:
  void get(std::uint64_t at, std::span<std::byte> bytes) const;

  Ring* ring_ = nullptr;
  std::uint64_t read_ = 0;
  bool armed_ = false;
  std::uint64_t wakes_ = 0;
};

}  // namespace p2p
