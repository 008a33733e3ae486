// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "convert/tensors.h"

namespace p2p::python {

/// A CUDA stream as callers name it, for one call of the engine on this thread. Used with the GIL.
class Stream {
 public:
  Stream() = default;

  /// None: no stream. Else a torch stream (or another object with `cuda_stream` or `__cuda_stream__`), or its
  /// handle as a number, of which 0 is the legacy default stream. TypeError for anything else.
  explicit Stream(const nanobind::object& named);

  /// The stream that is to have written `tensor` where the caller names none: of a torch tensor on a GPU
  /// torch's current one of that GPU, of other memory on a GPU the one that its owner says.
  Stream(const nanobind::object& named, const Tensor& tensor);

  /// A handle that stands for a default stream means that of the thread's current device: torch's device is
  /// put back then.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void* handle() const { return handle_; }  ///< cudaStream_t; null: none

 private:
  void take(const nanobind::object& named);
  void take_handle(nanobind::handle number);
  void enter_device(const nanobind::object& stream);

  void* handle_ = nullptr;
  nanobind::object device_;  ///< a torch.cuda.device that was entered, or nothing
};

}  // namespace p2p::python
