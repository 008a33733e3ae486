// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "convert/layout.h"

namespace p2p::python {

/// Memory that is named by the object which has it, in place of address and size. The caller keeps the object
/// for as long as the memory is used.
struct Tensor {
  std::uint64_t address = 0;  ///< of the first element
  std::size_t bytes = 0;      ///< of all elements, without gaps
  bool on_device = false;
  bool writable = true;
  Layout layout;
  nanobind::object device;  ///< torch's, where it is a torch tensor on a GPU
  nanobind::object stream;  ///< of another's memory on a GPU: the stream that wrote it, or None

  /// From the lowest byte to the end of the highest, with what lies between.
  std::pair<std::uint64_t, std::size_t> range() const {
    return layout.one_run() ? std::pair{address, bytes} : layout.range(address);
  }
};

/// What a call does with the memory of an object, and so what it may be.
enum class Use {
  kRange,      ///< takes the whole range: any layout
  kDescribed,  ///< names it to a peer as it lies: one run
  kSource,     ///< reads its elements: not more than Layout::kMostRuns
  kTarget      ///< writes them: the same, and neither read-only nor overlapping
};

/// Of a torch tensor, or of what has __cuda_array_interface__, the buffer protocol or __dlpack__. `call` is
/// for messages. TypeError for other objects and arrays of Python objects; ValueError for memory that `use`
/// does not take, and for torch's conjugate and negative views, whose memory has other values than they show.
Tensor tensor_of(nanobind::handle object, const char* call, Use use);

}  // namespace p2p::python
