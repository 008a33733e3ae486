// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/launch.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/copy.h"
#include "kernels/standby.h"

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

int launch(Kernel which, unsigned ctas, void* stream, void** arguments) {
  const void* kernel = nullptr;
  if (const int code = find_kernel(which, kernel); code != cudaSuccess) return code;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3{ctas, 1, 1};
  config.blockDim = dim3{kThreads, 1, 1};
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

int launch_standby(const StandbyBoard& board, unsigned ctas, void* stream) {
  StandbyBoard copy = board;
  void* arguments[] = {&copy};
  return launch(Kernel::kStandBy, ctas, stream, arguments);
}

}  // namespace p2p::kernels
