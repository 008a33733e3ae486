// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/message_ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "transport/transport.h"

namespace p2p {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// A block lies behind its length, and all begin at multiples of this.
constexpr std::size_t kAlign = 8;

constexpr std::uint64_t room_for(std::size_t block_bytes) {
  return kAlign + (block_bytes + kAlign - 1) / kAlign * kAlign;
}
static_assert(room_for(kMaxMessageBlockBytes) <= kRingBytes / 2);

// Linux 6.3 asks for one of the two in its log; older ones know neither.
Result<UniqueFd> make_memory() {
  constexpr unsigned kNotExecutable = 8;
  UniqueFd made = UniqueFd::of(::memfd_create, "p2p-words", MFD_CLOEXEC | MFD_ALLOW_SEALING | kNotExecutable);
  if (!made) made = UniqueFd::of(::memfd_create, "p2p-words", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (!made) return tl::unexpected(system_error("make a ring for words: memfd_create"));
  return made;
}

}  // namespace

RingMemory::RingMemory(RingMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), pairs_(other.pairs_) {}

RingMemory& RingMemory::operator=(RingMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(pairs_, other.pairs_);
  return *this;
}

RingMemory::~RingMemory() {
  if (data_ != nullptr) ::munmap(data_, ring_bytes(pairs_));
}

Result<RingMemory> RingMemory::create(UniqueFd& descriptor, unsigned pairs, std::size_t more) {
  auto made = make_memory();
  if (!made) return tl::unexpected(made.error());
  if (::ftruncate(made->get(), static_cast<off_t>(ring_bytes(pairs) + more)) != 0 ||
      ::fcntl(made->get(), F_ADD_SEALS, kSeals) != 0) {
    return tl::unexpected(system_error("make a ring for words: set its size for good"));
  }
  descriptor = std::move(*made);
  return map(descriptor, pairs);
}

Result<RingMemory> RingMemory::open(const UniqueFd& descriptor, unsigned pairs, std::size_t more) {
  const std::size_t bytes = ring_bytes(pairs) + more;
  struct stat status{};
  // Only memory made to be sealed has seals.
  const int seals = descriptor ? ::fcntl(descriptor.get(), F_GET_SEALS) : -1;
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(descriptor.get(), &status) != 0 ||
      status.st_size != static_cast<off_t>(bytes)) {
    return fail(ErrorCode::kProtocol, "share memory for words: the peer sent none of {} bytes that stay",
                bytes);
  }
  return map(descriptor, pairs);
}

Result<RingMemory> RingMemory::map(const UniqueFd& descriptor, unsigned pairs) {
  void* const data =
      ::mmap(nullptr, ring_bytes(pairs), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  if (data == MAP_FAILED) return tl::unexpected(system_error("share memory for words: mmap"));
  return RingMemory(data, pairs);
}

Ring& RingMemory::direction(unsigned number, unsigned pair) const {
  return static_cast<Ring*>(data_)[std::size_t{2} * pair + number];
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
