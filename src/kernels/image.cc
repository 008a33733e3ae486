// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The kernels as an image that CUDA drivers load, where NVRTC compiled them and not nvcc
// (cmake/device_code.py).
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>

#include "kernels/launch.h"

// Constant data of the library, so that it is there once and costs nothing before somebody has a GPU. A
// driver reads words of eight bytes in it.
asm(".pushsection .rodata\n"
    ".balign 16\n"
    ".globl p2p_device_code\n"
    ".hidden p2p_device_code\n"
    "p2p_device_code:\n"
    ".incbin \"" DEVICE_CODE
    "\"\n"
    ".popsection\n");

namespace p2p::kernels {

extern const unsigned char kDeviceCode[] asm("p2p_device_code");

namespace {

constexpr std::array kNames{"p2p_copy_listed", "p2p_copy_inline", "p2p_stand_by", "p2p_digest",
                            "p2p_copy_rows"};

std::array<std::atomic<cudaKernel_t>, kNames.size()> kernels{};

// A library in which all kernels were found stays loaded for the life of the process. Threads that come at
// the same time load one each, of which any does.
int load() {
  cudaLibrary_t library = nullptr;
  std::array<cudaKernel_t, kNames.size()> found{};
  int code = cudaLibraryLoadData(&library, kDeviceCode, nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (code != cudaSuccess) return code;
  for (std::size_t i = 0; i != kNames.size() && code == cudaSuccess; ++i) {
    code = cudaLibraryGetKernel(&found[i], library, kNames[i]);
  }
  if (code != cudaSuccess) {
    cudaLibraryUnload(library);
    return code;
  }
  for (std::size_t i = 0; i != kNames.size(); ++i) kernels[i].store(found[i], std::memory_order_release);
  return cudaSuccess;
}

}  // namespace

int find_kernel(Kernel which, const void*& found) {
  const std::atomic<cudaKernel_t>& kernel = kernels[static_cast<std::size_t>(which)];
  if (kernel.load(std::memory_order_acquire) == nullptr) {
    if (const int code = load(); code != cudaSuccess) return code;
  }
  found = kernel.load(std::memory_order_acquire);
  return cudaSuccess;
}

}  // namespace p2p::kernels
