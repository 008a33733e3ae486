// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "stream.h"

/// What the driver's handles of contexts, streams and events point to.
struct CUctx_st {
  int device = 0;
};

struct CUstream_st {
  std::shared_ptr<softgpu::Stream> stream;
  CUctx_st* context = nullptr;
  bool capturing = false;  ///< its work is left out
  bool counted = false;    ///< in global mode
};

struct CUevent_st {
  std::shared_ptr<softgpu::Stream> stream;
  std::uint64_t number = 0;
};

namespace softgpu {

/// The primary context of a device, active from now on.
CUctx_st* activate(int device);
bool is_active(int device);

/// The calling thread's.
CUctx_st*& current_context();

/// The same; that of device 0 if there was none.
CUctx_st* any_context();

/// CUDA's code if there is no device, or a stream is captured in global mode: then threads in another than
/// the relaxed mode may not do what could wait, and what was captured is lost with it. Else 0.
int refused();
int& capture_mode();  ///< of the calling thread
void begin_capture(CUstream_st& stream, int mode);

/// False if it was lost.
bool end_capture(CUstream_st& stream);

/// Also of the handles that stand for default streams.
CUstream_st& stream_of(CUstream_st* handle);

}  // namespace softgpu
