// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What runs on the device. Two compilers read this: nvcc, and NVRTC (cmake/device_code.py), which knows
// nothing of the host and of the standard library only <cstddef> and <cstdint>.
#include "kernels/launch.h"
#include "kernels/standby.h"

namespace p2p::kernels {
namespace {

constexpr unsigned kLanes = 32;
constexpr unsigned kWarps = kThreads / kLanes;
constexpr std::uint64_t kPiece = 4096;  // bytes that a warp takes at once
constexpr std::uint64_t kShortPiece = kLanes * sizeof(uint4);

/// Fresh: past the multiprocessor's own cache, which a kernel that outlives changes of memory would otherwise
/// read stale.
template <bool kFresh, class Word>
__device__ Word load(const Word* from) {
  if constexpr (!kFresh) {
    return *from;
  } else if constexpr (sizeof(Word) == sizeof(uint4)) {
    uint4 word;
    asm volatile("ld.volatile.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                 : "l"(from)
                 : "memory");
    return word;
  } else {
    return *static_cast<const volatile Word*>(from);
  }
}

/// `bytes` is a multiple of the word's size and both ends are aligned to it.
template <bool kFresh, class Word>
__device__ void copy_words(const std::byte* source, std::byte* target, std::uint64_t bytes, unsigned lane) {
  constexpr unsigned kUnderWay = 8;
  const Word* from = reinterpret_cast<const Word*>(source);
  Word* to = reinterpret_cast<Word*>(target);
  const unsigned count = static_cast<unsigned>(bytes / sizeof(Word));
  unsigned i = lane;
  for (; i + (kUnderWay - 1) * kLanes < count; i += kUnderWay * kLanes) {
    Word words[kUnderWay];
#pragma unroll
    for (unsigned k = 0; k < kUnderWay; ++k) words[k] = load<kFresh>(from + i + k * kLanes);
#pragma unroll
    for (unsigned k = 0; k < kUnderWay; ++k) to[i + k * kLanes] = words[k];
  }
  for (; i < count; i += kLanes) to[i] = load<kFresh>(from + i);
}

/// Single bytes until both ends are aligned to a word, words, single bytes.
template <bool kFresh, class Word>
__device__ void copy_aligned(const std::byte* source, std::byte* target, std::uint64_t bytes, unsigned lane) {
  const std::uint64_t misplaced = (0 - reinterpret_cast<std::uint64_t>(target)) % sizeof(Word);
  const std::uint64_t head = misplaced < bytes ? misplaced : bytes;
  const std::uint64_t words = (bytes - head) / sizeof(Word) * sizeof(Word);
  const std::uint64_t tail = bytes - head - words;
  if (lane < head) target[lane] = load<kFresh>(source + lane);
  copy_words<kFresh, Word>(source + head, target + head, words, lane);
  if (lane < tail) target[head + words + lane] = load<kFresh>(source + head + words + lane);
}

/// A piece of at most kPiece bytes, by one warp, in the widest words that fit both ends alike.
template <bool kFresh>
__device__ void copy_piece(const std::byte* source, std::byte* target, std::uint64_t bytes, unsigned lane) {
  const std::uint64_t apart =
      reinterpret_cast<std::uint64_t>(source) ^ reinterpret_cast<std::uint64_t>(target);
  if (apart % 16 == 0) {
    copy_aligned<kFresh, uint4>(source, target, bytes, lane);
  } else if (apart % 8 == 0) {
    copy_aligned<kFresh, std::uint64_t>(source, target, bytes, lane);
  } else if (apart % 4 == 0) {
    copy_aligned<kFresh, std::uint32_t>(source, target, bytes, lane);
  } else {
    copy_words<kFresh, unsigned char>(source, target, bytes, lane);
  }
}

/// The last thread block to get here tells the host.
__device__ void tell(const Signal& signal) {
  if (signal.word == nullptr) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  // Counts to the last one and is zero again.
  if (atomicInc(signal.arrivals, gridDim.x - 1) != gridDim.x - 1) return;
  __threadfence_system();
  *static_cast<volatile std::uint32_t*>(signal.word) = signal.value;
}

/// A warp's unit of work is one of `split` shares of a block; the next unit's block is fetched while this one
/// is copied, because it may lie in host memory.
__device__ void copy_units(const CopyBlock* blocks, std::uint64_t count, std::uint64_t split) {
  const unsigned lane = threadIdx.x % kLanes;
  const std::uint64_t warps = std::uint64_t{gridDim.x} * kWarps;
  const std::uint64_t units = count * split;
  // Neighbouring units go to different multiprocessors.
  std::uint64_t unit = std::uint64_t{threadIdx.x / kLanes} * gridDim.x + blockIdx.x;
  if (unit >= units) return;
  CopyBlock block = blocks[unit / split];
  while (true) {
    const std::uint64_t next = unit + warps;
    const CopyBlock following = next < units ? blocks[next / split] : CopyBlock{};
    for (std::uint64_t at = unit % split * kPiece; at < block.bytes; at += split * kPiece) {
      const std::uint64_t left = block.bytes - at;
      copy_piece<false>(block.source + at, block.target + at, left < kPiece ? left : kPiece, lane);
    }
    if (next >= units) return;
    unit = next;
    block = following;
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    p2p_copy_listed(const CopyBlock* blocks, std::uint64_t count, std::uint64_t split, Signal signal) {
  copy_units(blocks, count, split);
  tell(signal);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    p2p_copy_inline(const __grid_constant__ InlineBlocks list, std::uint64_t count, std::uint64_t split,
                    Signal signal) {
  copy_units(list.blocks, count, split);
  tell(signal);
}

namespace {

__device__ std::uint64_t nanoseconds() {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

/// Reads what the host or another thread block writes, and lets nothing that comes after go ahead of it.
__device__ std::uint64_t load_acquire(const std::uint64_t* word) {
  std::uint64_t value = 0;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

/// Field `lane` % 4 of the order once all of it has come, zero when the time is up. By one warp together.
__device__ std::uint64_t wait_for_order(const Order& order, std::uint32_t number, std::uint64_t until,
                                        unsigned lane) {
  constexpr unsigned kLooks = 256;  // between looks at the time
  const auto* const words = reinterpret_cast<const std::uint64_t*>(&order);
  const std::uint64_t tag = std::uint64_t{number} << kFieldBits >> kFieldBits;
  for (unsigned looks = 1;; ++looks) {
    const std::uint64_t word = load_acquire(words + lane % 4);
    if (__all_sync(~0U, word >> kFieldBits == tag)) return word & kFieldMask;
    if (looks % kLooks == 0 && __any_sync(~0U, nanoseconds() > until)) return 0;
  }
}

/// One thread block alone asks the host's memory, where reads of the same place wait for each other, and
/// hands on through the device's what came; so all of them end with the same order, too.
__device__ std::uint64_t next_order(const StandbyBoard& board, std::uint32_t number, std::uint64_t until,
                                    unsigned lane) {
  Order& relay = board.relay[number % kOrders];
  if (blockIdx.x != 0) return wait_for_order(relay, number, ~std::uint64_t{0}, lane);
  const std::uint64_t field = wait_for_order(board.orders[number % kOrders], number, until, lane);
  if (lane < 4) {
    reinterpret_cast<volatile std::uint64_t*>(&relay)[lane] = field | std::uint64_t{number} << kFieldBits;
  }
  return field;
}

/// As `tell`, without the second fence: the bytes of each thread block have arrived when it is counted, so
/// that whatever is written after the count is later than all of them.
__device__ void tell_done(const StandbyBoard& board, std::uint32_t number) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  if (atomicInc(board.arrivals + number % kOrders, gridDim.x - 1) != gridDim.x - 1) return;
  *static_cast<volatile std::uint32_t*>(board.done) = number;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    p2p_stand_by(const __grid_constant__ StandbyBoard board) {
  __shared__ std::uint64_t fields[4];
  const unsigned lane = threadIdx.x % kLanes;
  const std::uint64_t warps = std::uint64_t{gridDim.x} * kWarps;
  const std::uint64_t warp = std::uint64_t{threadIdx.x / kLanes} * gridDim.x + blockIdx.x;
  const std::uint64_t end = nanoseconds() + board.life_ns;
  tell_done(board, board.first);
  for (std::uint32_t number = board.first + 1;; ++number) {
    if (threadIdx.x < kLanes) {
      const std::uint64_t idle = nanoseconds() + board.idle_ns;
      const std::uint64_t until = idle < end ? idle : end;
      const std::uint64_t field = next_order(board, number, until, lane);
      if (lane < 4) fields[lane] = field;
    }
    __syncthreads();
    const auto* const source = reinterpret_cast<const std::byte*>(fields[0]);
    auto* const target = reinterpret_cast<std::byte*>(fields[1]);
    const std::uint64_t bytes = fields[2];
    if (bytes == 0) return;
    // One load a lane as long as that does, so that all multiprocessors share a short copy.
    const std::uint64_t piece = bytes <= warps * kShortPiece ? kShortPiece : kPiece;
    for (std::uint64_t at = warp * piece; at < bytes; at += warps * piece) {
      const std::uint64_t left = bytes - at;
      copy_piece<true>(source + at, target + at, left < piece ? left : piece, lane);
    }
    tell_done(board, number);
  }
}

#ifndef __CUDACC_RTC__
int find_kernel(Kernel which, const void*& found) {
  switch (which) {
    case Kernel::kCopyListed: found = reinterpret_cast<const void*>(p2p_copy_listed); break;
    case Kernel::kCopyInline: found = reinterpret_cast<const void*>(p2p_copy_inline); break;
    case Kernel::kStandBy: found = reinterpret_cast<const void*>(p2p_stand_by); break;
  }
  return 0;
}
#endif

}  // namespace p2p::kernels
