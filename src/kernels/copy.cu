// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What runs on the device. Two compilers read this: nvcc, and NVRTC (cmake/device_code.py), which knows
// nothing of the host and of the standard library only <cstddef> and <cstdint>.
#include "kernels/launch.h"
#include "kernels/rows.h"
#include "kernels/standby.h"
#include "kernels/xxh3.h"

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

/// The same of blocks that nobody has listed.
__device__ void copy_rows(const CopyRows& all, std::uint64_t split) {
  const std::uint32_t thread = blockIdx.x * kThreads + threadIdx.x, threads = gridDim.x * kThreads;
  switch (rows::word_of(all)) {
    case 16: return rows::copy<uint4>(all, thread, threads);
    case 8: return rows::copy<std::uint64_t>(all, thread, threads);
    case 4: return rows::copy<std::uint32_t>(all, thread, threads);
    default: break;
  }
  const unsigned lane = threadIdx.x % kLanes;
  const std::uint64_t units = all.count * all.rows * split;
  std::uint64_t unit = std::uint64_t{threadIdx.x / kLanes} * gridDim.x + blockIdx.x;
  for (; unit < units; unit += threads / kLanes) {
    const std::uint64_t which = unit / split;
    const std::uint64_t row = which / all.count, place = which % all.count;
    const std::byte* const source = all.first.source + (row * all.source_row + place * all.source_stride);
    std::byte* const target = all.first.target + (row * all.target_row + place * all.target_stride);
    for (std::uint64_t at = unit % split * kPiece; at < all.first.bytes; at += split * kPiece) {
      const std::uint64_t left = all.first.bytes - at;
      copy_piece<false>(source + at, target + at, left < kPiece ? left : kPiece, lane);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    p2p_copy_rows(const __grid_constant__ CopyRows all, std::uint64_t split, Signal signal) {
  copy_rows(all, split);
  tell(signal);
}

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

namespace {

using xxh3::Pair;
using xxh3::Secret;

__constant__ const Secret kSecretThere = xxh3::kSecret;

/// Reads bytes that lie in runs, forwards. Behind the last one are zeros.
struct RunReader {
  const DigestRun* runs;
  std::uint64_t count;
  std::uint64_t total;
  std::uint64_t run = 0;
  std::uint64_t end = 0;   // of the run
  std::uint64_t base = 0;  // where byte 0 would lie if all were this run

  __device__ void enter(std::uint64_t which) {
    run = which;
    base = reinterpret_cast<std::uint64_t>(runs[which].data) - runs[which].begin;
    end = which + 1 < count ? runs[which + 1].begin : total;
  }

  /// To the run of byte `at`, from anywhere.
  __device__ void seek(std::uint64_t at) {
    std::uint64_t low = 0, high = count;  // the last one that begins at `at` or before
    while (high - low > 1) {
      const std::uint64_t middle = (low + high) / 2;
      if (runs[middle].begin <= at) {
        low = middle;
      } else {
        high = middle;
      }
    }
    enter(low);
  }

  __device__ std::uint64_t bytes(std::uint64_t at) {
    std::uint64_t value = 0;
    for (unsigned i = 0; i < sizeof value && at < total; ++i, ++at) {
      while (at >= end) enter(run + 1);
      value |= static_cast<std::uint64_t>(*reinterpret_cast<const unsigned char*>(base + at)) << (8 * i);
    }
    return value;
  }

  /// Eight bytes. Where they are not aligned, the words that they lie in are read: of these at least one byte
  /// is the run's, so that they are all there.
  __device__ std::uint64_t word(std::uint64_t at) {
    if (at + sizeof(std::uint64_t) > end) return bytes(at);
    const std::uint64_t place = base + at, shift = place % sizeof(std::uint64_t) * 8;
    const auto* const words = reinterpret_cast<const std::uint64_t*>(place - place % sizeof(std::uint64_t));
    return shift == 0 ? words[0] : words[0] >> shift | words[1] << (64 - shift);
  }
};

/// Of one run. `place` is that of the first pair; each is a stripe behind the one before.
template <bool kAligned, unsigned kCount>
__device__ void load_pairs(std::uint64_t place, Pair (&pairs)[kCount]) {
  constexpr unsigned kStride = xxh3::kStripe / sizeof(std::uint64_t);
  if constexpr (kAligned) {
    const auto* const from = reinterpret_cast<const ulonglong2*>(place);
#pragma unroll
    for (unsigned k = 0; k < kCount; ++k) {
      const ulonglong2 both = from[k * (kStride / 2)];
      pairs[k].first = both.x;
      pairs[k].second = both.y;
    }
  } else {
    const std::uint64_t shift = place % sizeof(std::uint64_t) * 8;
    const auto* const from = reinterpret_cast<const std::uint64_t*>(place - place % sizeof(std::uint64_t));
#pragma unroll
    for (unsigned k = 0; k < kCount; ++k) pairs[k] = {from[k * kStride], from[k * kStride + 1]};
    if (shift == 0) return;
#pragma unroll
    for (unsigned k = 0; k < kCount; ++k) {
      const std::uint64_t behind = from[k * kStride + 2];
      pairs[k] = {pairs[k].first >> shift | pairs[k].second << (64 - shift),
                  pairs[k].second >> shift | behind << (64 - shift)};
    }
  }
}

/// A row of one run, loaded ahead.
template <bool kAligned>
__device__ void add_row_of_run(std::uint64_t place, unsigned row, unsigned part, const Secret& secret,
                               Pair& sums) {
  constexpr unsigned kUnderWay = 4;
#pragma unroll
  for (unsigned done = 0; done < xxh3::kStripes; done += kUnderWay) {
    Pair pairs[kUnderWay];
    load_pairs<kAligned>(place + done * xxh3::kStripe, pairs);
#pragma unroll
    for (unsigned k = 0; k < kUnderWay; ++k) {
      xxh3::add(sums, pairs[k], xxh3::keys(secret, row, done + k, part));
    }
  }
}

__device__ void add_row(RunReader& reader, std::uint64_t begin, unsigned row, unsigned part,
                        const Secret& secret, Pair& sums) {
  std::uint64_t at = begin + part * sizeof(Pair);
  if (begin + xxh3::kStripes * xxh3::kStripe <= reader.end) {
    const std::uint64_t place = reader.base + at;
    if (place % sizeof(Pair) == 0) return add_row_of_run<true>(place, row, part, secret, sums);
    return add_row_of_run<false>(place, row, part, secret, sums);
  }
  for (unsigned stripe = 0; stripe < xxh3::kStripes; ++stripe, at += xxh3::kStripe) {
    const Pair pair{reader.word(at), reader.word(at + sizeof(std::uint64_t))};
    xxh3::add(sums, pair, xxh3::keys(secret, row, stripe, part));
  }
}

/// The hash of the block that begins at `begin`, by the parts of `mask` together.
__device__ std::uint64_t hash_block(RunReader& reader, std::uint64_t begin, unsigned part, unsigned mask,
                                    const Secret& secret) {
  reader.seek(begin);
  Pair sums = xxh3::first_sums(part);
#pragma unroll 1
  for (unsigned row = 0; row < xxh3::kRows; ++row) {
    if (row != 0) xxh3::scramble(sums, secret, part);
    add_row(reader, begin + row * xxh3::kStripes * xxh3::kStripe, row, part, secret, sums);
  }
  std::uint64_t sum = xxh3::folded(sums, secret, part);
#pragma unroll
  for (int apart = 1; apart < static_cast<int>(xxh3::kParts); apart *= 2) {
    sum += __shfl_xor_sync(mask, sum, apart, xxh3::kParts);
  }
  return xxh3::finish(sum, kHashedBlock);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kDigestThreads, 8)
    p2p_digest(const __grid_constant__ InlineRuns inlined, DigestList list, std::uint64_t* blocks,
               Signal signal) {
  __shared__ Secret secret;
  if (threadIdx.x < xxh3::kSecretWords) secret.words[threadIdx.x] = kSecretThere.words[threadIdx.x];
  __syncthreads();
  const unsigned part = threadIdx.x % xxh3::kParts;
  const unsigned mask = 0xFU << (threadIdx.x % kLanes - part);
  const std::uint64_t count = (list.total + kHashedBlock - 1) / kHashedBlock;
  const std::uint64_t groups = std::uint64_t{gridDim.x} * (kDigestThreads / xxh3::kParts);
  RunReader reader{list.runs != nullptr ? list.runs : inlined.runs, list.count, list.total};
  std::uint64_t block = (std::uint64_t{blockIdx.x} * kDigestThreads + threadIdx.x) / xxh3::kParts;
  for (; block < count; block += groups) {
    const std::uint64_t hash = hash_block(reader, block * kHashedBlock, part, mask, secret);
    if (part == 0) blocks[block] = hash;
  }
  tell(signal);
}

#ifndef __CUDACC_RTC__
int find_kernel(Kernel which, const void*& found) {
  switch (which) {
    case Kernel::kCopyListed: found = reinterpret_cast<const void*>(p2p_copy_listed); break;
    case Kernel::kCopyInline: found = reinterpret_cast<const void*>(p2p_copy_inline); break;
    case Kernel::kStandBy: found = reinterpret_cast<const void*>(p2p_stand_by); break;
    case Kernel::kCopyRows: found = reinterpret_cast<const void*>(p2p_copy_rows); break;
    case Kernel::kDigest: found = reinterpret_cast<const void*>(p2p_digest); break;
  }
  return 0;
}
#endif

}  // namespace p2p::kernels
