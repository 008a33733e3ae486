// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/copy.h"

namespace p2p::kernels {
namespace {

constexpr unsigned kThreads = 512;
constexpr unsigned kLanes = 32;
constexpr unsigned kWarps = kThreads / kLanes;
constexpr std::uint64_t kPiece = 4096;  // bytes that a warp takes at once

struct InlineBlocks {
  CopyBlock blocks[kInlineBlocks];
};

/// `bytes` is a multiple of the word's size and both ends are aligned to it.
template <class Word>
__device__ void copy_words(const std::byte* source, std::byte* target, std::uint64_t bytes, unsigned lane) {
  constexpr unsigned kUnderWay = 8;
  const Word* from = reinterpret_cast<const Word*>(source);
  Word* to = reinterpret_cast<Word*>(target);
  const unsigned count = static_cast<unsigned>(bytes / sizeof(Word));
  unsigned i = lane;
  for (; i + (kUnderWay - 1) * kLanes < count; i += kUnderWay * kLanes) {
    Word words[kUnderWay];
#pragma unroll
    for (unsigned k = 0; k < kUnderWay; ++k) words[k] = from[i + k * kLanes];
#pragma unroll
    for (unsigned k = 0; k < kUnderWay; ++k) to[i + k * kLanes] = words[k];
  }
  for (; i < count; i += kLanes) to[i] = from[i];
}

/// Single bytes until both ends are aligned to a word, words, single bytes.
template <class Word>
__device__ void copy_aligned(const std::byte* source, std::byte* target, std::uint64_t bytes, unsigned lane) {
  const std::uint64_t misplaced = (0 - reinterpret_cast<std::uint64_t>(target)) % sizeof(Word);
  const std::uint64_t head = misplaced < bytes ? misplaced : bytes;
  const std::uint64_t words = (bytes - head) / sizeof(Word) * sizeof(Word);
  const std::uint64_t tail = bytes - head - words;
  if (lane < head) target[lane] = source[lane];
  copy_words<Word>(source + head, target + head, words, lane);
  if (lane < tail) target[head + words + lane] = source[head + words + lane];
}

/// A piece of at most kPiece bytes, by one warp, in the widest words that fit both ends alike.
__device__ void copy_piece(const std::byte* source, std::byte* target, std::uint64_t bytes, unsigned lane) {
  const std::uint64_t apart =
      reinterpret_cast<std::uint64_t>(source) ^ reinterpret_cast<std::uint64_t>(target);
  if (apart % 16 == 0) {
    copy_aligned<uint4>(source, target, bytes, lane);
  } else if (apart % 8 == 0) {
    copy_aligned<std::uint64_t>(source, target, bytes, lane);
  } else if (apart % 4 == 0) {
    copy_aligned<std::uint32_t>(source, target, bytes, lane);
  } else {
    copy_words<unsigned char>(source, target, bytes, lane);
  }
}

/// The last thread block to get here tells the host.
__device__ void tell(const Signal& signal) {
  if (signal.word == nullptr) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  if (atomicAdd(signal.arrivals, 1) != gridDim.x - 1) return;
  *signal.arrivals = 0;
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
      copy_piece(block.source + at, block.target + at, left < kPiece ? left : kPiece, lane);
    }
    if (next >= units) return;
    unit = next;
    block = following;
  }
}

__global__ void __launch_bounds__(kThreads)
    copy_listed(const CopyBlock* blocks, std::uint64_t count, std::uint64_t split, Signal signal) {
  copy_units(blocks, count, split);
  tell(signal);
}

__global__ void __launch_bounds__(kThreads)
    copy_inline(const __grid_constant__ InlineBlocks list, std::uint64_t count, std::uint64_t split,
                Signal signal) {
  copy_units(list.blocks, count, split);
  tell(signal);
}

int processors_of_current_device(unsigned& processors) {
  int device = 0;
  int count = 0;
  int code = cudaGetDevice(&device);
  if (code == cudaSuccess) code = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  processors = static_cast<unsigned>(count);
  return code;
}

}  // namespace

int launch_copy(const CopyList& list, const Grid& grid, const Signal& signal, void* stream) {
  unsigned processors = 0;
  if (const int code = processors_of_current_device(processors); code != cudaSuccess) return code;
  const CopyShape shape = shape_of(list, grid, processors);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.ctas);
  config.blockDim = dim3(kThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  const auto count = static_cast<std::uint64_t>(list.count);
  if (list.count > kInlineBlocks) {
    return cudaLaunchKernelEx(&config, copy_listed, list.blocks, count, shape.split, signal);
  }
  InlineBlocks blocks{};
  std::copy_n(list.blocks, list.count, blocks.blocks);
  return cudaLaunchKernelEx(&config, copy_inline, blocks, count, shape.split, signal);
}

}  // namespace p2p::kernels
