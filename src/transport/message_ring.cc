// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/message_ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "transport/transport.h"

namespace p2p {
namespace {

// A block lies behind its length, and all begin at multiples of this.
constexpr std::size_t kAlign = 8;

constexpr std::uint64_t room_for(std::size_t block_bytes) {
  return kAlign + (block_bytes + kAlign - 1) / kAlign * kAlign;
}
static_assert(room_for(kMaxMessageBlockBytes) <= kRingBytes / 2);

}  // namespace

Result<RingMemory> RingMemory::create(UniqueFd& descriptor, unsigned pairs, std::size_t more) {
  auto made = make_sealed_file("p2p-words", ring_bytes(pairs) + more);
  if (!made) return tl::unexpected(made.error());
  descriptor = std::move(*made);
  return map(descriptor, pairs);
}

Result<RingMemory> RingMemory::open(const UniqueFd& descriptor, unsigned pairs, std::size_t more) {
  const std::size_t bytes = ring_bytes(pairs) + more;
  const auto size = size_of_sealed_file(descriptor);
  if (!size || *size != bytes) {
    return fail(ErrorCode::kProtocol, "share memory for words: the peer sent none of {} bytes that stay",
                bytes);
  }
  return map(descriptor, pairs);
}

Result<RingMemory> RingMemory::map(const UniqueFd& descriptor, unsigned pairs) {
  RingMemory made;
  if (Status mapped = move_into(made.memory_, MappedFile::map(descriptor, 0, ring_bytes(pairs))); !mapped) {
    return tl::unexpected(std::move(mapped.error()));
  }
  return made;
}

Ring& RingMemory::direction(unsigned number, unsigned pair) const {
  return reinterpret_cast<Ring*>(memory_.data())[std::size_t{2} * pair + number];
}

Result<bool> RingWriter::write(ByteView block) {
  const std::uint64_t held = written_ - ring_->read.load(std::memory_order_acquire);
  if (held > kRingBytes) {
    return fail(ErrorCode::kProtocol, "a ring of {} bytes holds {}, as its reader counts", kRingBytes, held);
  }
  if (kRingBytes - held < room_for(block.size())) return false;
  const auto size = static_cast<std::uint32_t>(block.size());
  put(written_, ByteView(reinterpret_cast<const std::byte*>(&size), sizeof size));
  put(written_ + kAlign, block);
  written_ += room_for(block.size());
  ring_->written.store(written_, std::memory_order_seq_cst);
  return true;
}

bool RingWriter::wake_due() {
  return ring_->wake_wanted.load(std::memory_order_seq_cst) != 0 && ring_->wake_wanted.exchange(0) != 0;
}

void RingWriter::put(std::uint64_t at, ByteView bytes) {
  if (bytes.empty()) return;
  const std::size_t offset = at % kRingBytes;
  const std::size_t first = std::min(bytes.size(), kRingBytes - offset);
  std::memcpy(ring_->bytes + offset, bytes.data(), first);
  if (first != bytes.size()) std::memcpy(ring_->bytes, bytes.data() + first, bytes.size() - first);
}

Result<bool> RingReader::read(Bytes& block) {
  const std::uint64_t there = ring_->written.load(std::memory_order_acquire) - read_;
  if (there == 0) return false;
  std::uint32_t size = 0;
  if (there >= kAlign && there <= kRingBytes) {
    get(read_, std::span(reinterpret_cast<std::byte*>(&size), sizeof size));
  }
  if (there > kRingBytes || there < kAlign || size > kMaxMessageBlockBytes || room_for(size) > there) {
    return fail(ErrorCode::kProtocol, "a ring has {} bytes with a block of {}", there, size);
  }
  block.resize(size);
  get(read_ + kAlign, block);
  read_ += room_for(size);
  ring_->read.store(read_, std::memory_order_release);
  return true;
}

bool RingReader::arm_events() {
  enter_polling();
  ring_->wake_wanted.store(1, std::memory_order_seq_cst);
  armed_ = true;
  if (ring_->written.load(std::memory_order_seq_cst) == read_) return true;
  enter_polling();
  return false;
}

void RingReader::get(std::uint64_t at, std::span<std::byte> bytes) const {
  if (bytes.empty()) return;
  const std::size_t offset = at % kRingBytes;
  const std::size_t first = std::min(bytes.size(), kRingBytes - offset);
  std::memcpy(bytes.data(), ring_->bytes + offset, first);
  if (first != bytes.size()) std::memcpy(bytes.data() + first, ring_->bytes, bytes.size() - first);
}

}  // namespace p2p
