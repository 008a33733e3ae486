// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "p2p/result.h"

namespace p2p::cuda {

/// Owns a mark behind all that one of the program's streams had to do when it was set. What the stream is
/// given later does not count, and the stream may be destroyed before the mark. Any thread.
class StreamMark {
 public:
  /// `stream` is a cudaStream_t of any context, not null; cudaStreamLegacy and cudaStreamPerThread are those
  /// of this thread and of its current device. kInvalidArgument for one whose work is being captured.
  static Result<StreamMark> set(void* stream);

  StreamMark(StreamMark&& other) noexcept
      : event_(std::exchange(other.event_, nullptr)), context_(std::exchange(other.context_, nullptr)) {}
  StreamMark& operator=(StreamMark&& other) noexcept {
    std::swap(event_, other.event_);
    std::swap(context_, other.context_);
    return *this;
  }
  ~StreamMark();

  /// True once that work is done; the error if it failed. Asks the driver.
  Result<bool> passed() const;

 private:
  StreamMark(void* event, void* context) : event_(event), context_(context) {}
  void* event_ = nullptr;    // CUevent
  void* context_ = nullptr;  // CUcontext, the stream's
};

}  // namespace p2p::cuda
