// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "context.h"

#include <cuda.h>

#include <array>
#include <atomic>

#include "devices.h"

namespace softgpu {
namespace {

constexpr std::size_t kMost = 64;

struct Primaries {
  std::array<CUctx_st, kMost> contexts{};
  std::array<std::atomic<bool>, kMost> active{};

  Primaries() {
    for (std::size_t i = 0; i != kMost; ++i) contexts[i].device = static_cast<int>(i);
  }
};

Primaries& primaries() {
  static Primaries all;
  return all;
}

std::atomic<int> global_captures{0};
std::atomic<bool> capture_lost{false};

CUstream_st made(CUctx_st* context) { return {Stream::open(context->device), context}; }

}  // namespace

CUctx_st* activate(int device) {
  const auto index = static_cast<std::size_t>(device);
  primaries().active.at(index) = true;
  return &primaries().contexts[index];
}

bool is_active(int device) { return primaries().active.at(static_cast<std::size_t>(device)); }

CUctx_st*& current_context() {
  thread_local CUctx_st* current = nullptr;
  return current;
}

CUctx_st* any_context() {
  CUctx_st*& current = current_context();
  if (current == nullptr) current = activate(0);
  return current;
}

int& capture_mode() {
  thread_local int mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  return mode;
}

int refused() {
  if (device_count() == 0) return CUDA_ERROR_NO_DEVICE;
  if (global_captures == 0 || capture_mode() == CU_STREAM_CAPTURE_MODE_RELAXED) return 0;
  capture_lost = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

void begin_capture(CUstream_st& stream, int mode) {
  stream.capturing = true;
  capture_lost = false;
  stream.counted = mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
  if (stream.counted) ++global_captures;
}

bool end_capture(CUstream_st& stream) {
  stream.capturing = false;
  if (stream.counted) --global_captures;
  return !capture_lost;
}

CUstream_st& stream_of(CUstream_st* handle) {
  if (handle == CU_STREAM_PER_THREAD) {
    thread_local CUstream_st own = made(any_context());
    return own;
  }
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    static CUstream_st* const shared = new CUstream_st(made(any_context()));
    return *shared;
  }
  return *handle;
}

}  // namespace softgpu
