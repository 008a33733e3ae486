// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "gpu_capture.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdint>
#include <utility>

namespace p2p::testing {
namespace {

constexpr unsigned kNonBlocking = 1;
constexpr int kGlobalMode = 0;

/// The driver's function of this name, called; its answer.
template <class... Arguments>
int call(const char* name, Arguments... arguments) {
  using Function = int(Arguments...);
  auto* const function = reinterpret_cast<Function*>(::dlsym(::dlopen("libcuda.so.1", RTLD_NOW), name));
  return function != nullptr ? function(arguments...) : -1;
}

Status check_call(int code, const char* what) {
  if (code == 0) return {};
  return tl::unexpected(Error{ErrorCode::kSystem, fmt::format("{}: CUDA error {}", what, code)});
}

}  // namespace

Status GpuCapture::begin(int device) {
  auto memory = GpuMemory::allocate(fmt::format("cuda:{}", device), 4096);
  if (!memory) return tl::unexpected(memory.error());
  memory_ = std::move(*memory);
  Status status = check_call(call("cuStreamCreate", &stream_, kNonBlocking), "make a stream");
  if (status) status = check_call(call("cuStreamBeginCapture_v2", stream_, kGlobalMode), "begin a capture");
  const auto address = reinterpret_cast<std::uint64_t>(memory_.data());
  const unsigned char value = 1;
  if (status)
    status = check_call(call("cuMemsetD8Async", address, value, std::size_t{4096}, stream_), "capture");
  return status;
}

Status GpuCapture::end() {
  void* graph = nullptr;
  Status status = check_call(call("cuStreamEndCapture", stream_, &graph), "end a capture");
  if (status && graph == nullptr) status = check_call(-1, "end a capture: no graph");
  if (graph != nullptr) call("cuGraphDestroy", graph);
  call("cuStreamDestroy_v2", stream_);
  memory_ = GpuMemory();  // not in the next capture, which freeing it would end
  return status;
}

}  // namespace p2p::testing
