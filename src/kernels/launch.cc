// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/launch.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/copy.h"
#include "kernels/digest.h"
#include "kernels/standby.h"
#include "kernels/xxh3.h"

namespace p2p::kernels {
namespace {

int processors_of_current_device(unsigned& processors) {
  int device = 0;
  int count = 0;
  int code = cudaGetDevice(&device);
  if (code == cudaSuccess) code = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  processors = static_cast<unsigned>(count);
  return code;
}

int launch(Kernel which, unsigned ctas, void* stream, void** arguments, unsigned threads = kThreads) {
  const void* kernel = nullptr;
  if (const int code = find_kernel(which, kernel); code != cudaSuccess) return code;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3{ctas, 1, 1};
  config.blockDim = dim3{threads, 1, 1};
  config.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

}  // namespace

int launch_copy(const CopyList& list, const Grid& grid, const Signal& signal, void* stream) {
  unsigned processors = 0;
  if (const int code = processors_of_current_device(processors); code != cudaSuccess) return code;
  const CopyShape shape = shape_of(list, grid, processors);
  auto count = static_cast<std::uint64_t>(list.count);
  std::uint64_t split = shape.split;
  Signal told = signal;
  if (list.count > kInlineBlocks) {
    const CopyBlock* blocks = list.blocks;
    void* arguments[] = {&blocks, &count, &split, &told};
    return launch(Kernel::kCopyListed, shape.ctas, stream, arguments);
  }
  InlineBlocks blocks{};
  std::copy_n(list.blocks, list.count, blocks.blocks);
  void* arguments[] = {&blocks, &count, &split, &told};
  return launch(Kernel::kCopyInline, shape.ctas, stream, arguments);
}

int launch_copy(const CopyRows& rows, const Grid& grid, const Signal& signal, void* stream) {
  const std::uint64_t count = rows.count * rows.rows;
  unsigned processors = 0;
  if (const int code = processors_of_current_device(processors); code != cudaSuccess) return code;
  const CopyList like{nullptr, count, count * rows.first.bytes, rows.first.bytes};
  const CopyShape shape = shape_of(like, grid, processors);
  CopyRows copied = rows;
  std::uint64_t split = shape.split;
  Signal told = signal;
  void* arguments[] = {&copied, &split, &told};
  return launch(Kernel::kCopyRows, shape.ctas, stream, arguments);
}

int launch_standby(const StandbyBoard& board, unsigned ctas, void* stream) {
  StandbyBoard copy = board;
  void* arguments[] = {&copy};
  return launch(Kernel::kStandBy, ctas, stream, arguments);
}

int launch_digest(const DigestList& list, std::uint64_t* blocks, const Signal& signal, void* stream) {
  constexpr std::uint64_t kBlocks = kDigestThreads / xxh3::kParts;  // of a thread block
  constexpr unsigned kMost = 16;                                    // thread blocks of a multiprocessor
  unsigned processors = 0;
  if (const int code = processors_of_current_device(processors); code != cudaSuccess) return code;
  const std::uint64_t worth = ((list.total + kHashedBlock - 1) / kHashedBlock + kBlocks - 1) / kBlocks;
  const auto ctas = static_cast<unsigned>(std::min<std::uint64_t>(worth, std::uint64_t{processors} * kMost));
  InlineRuns inlined{};
  DigestList listed = list;
  if (list.count <= kInlineRuns) {
    std::copy_n(list.runs, list.count, inlined.runs);
    listed.runs = nullptr;
  }
  Signal told = signal;
  void* arguments[] = {&inlined, &listed, &blocks, &told};
  return launch(Kernel::kDigest, ctas, stream, arguments, kDigestThreads);
}

}  // namespace p2p::kernels
