// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

namespace p2p::python {

/// Memory that is named by the object which has it, in place of address and size. The caller keeps the object
/// for as long as the memory is used.
struct Tensor {
  std::uint64_t address = 0;
  std::size_t bytes = 0;
  bool on_device = false;
  bool writable = true;
  nanobind::object device;  ///< torch's, where it is a torch tensor on a GPU
  nanobind::object stream;  ///< of another's memory on a GPU: the stream that wrote it, or None
};

/// Of a torch tensor, or of what has __cuda_array_interface__, the buffer protocol or __dlpack__. `call` is
/// for messages. TypeError for other objects and arrays of Python objects; ValueError for memory with gaps,
/// and for torch's conjugate and negative views, whose memory has other values than they show.
Tensor tensor_of(nanobind::handle object, const char* call);

/// The same for memory that is to be written to: ValueError where that is forbidden.
Tensor writable_tensor_of(nanobind::handle object, const char* call);

}  // namespace p2p::python
