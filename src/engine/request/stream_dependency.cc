// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/request/stream_dependency.h"

#include <utility>

#include "base/error.h"
#include "drivers/cuda/mark.h"

namespace p2p::engine {
namespace {

class StreamMarkPassed final : public StreamDependency {
 public:
  explicit StreamMarkPassed(cuda::StreamMark mark) : mark_(std::move(mark)) {}

 private:
  Result<bool> look() const override { return mark_.passed(); }

  const cuda::StreamMark mark_;
};

}  // namespace

Result<std::shared_ptr<const StreamDependency>> dependency_behind(void* cuda_stream) {
  if (cuda_stream == nullptr) return nullptr;
  auto mark = cuda::StreamMark::set(cuda_stream);
  if (!mark) {
    return fail(mark.error().code, "transfer behind CUDA stream {}: {}", cuda_stream, mark.error().message);
  }
  return std::make_shared<StreamMarkPassed>(std::move(*mark));
}

}  // namespace p2p::engine
