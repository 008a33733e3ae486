// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>

#include "engine/request/stream_dependency.h"

namespace p2p::engine {

// Opens, or fails, when the test says so.
class TestStreamDependency : public StreamDependency {
 public:
  std::atomic<bool> opened{false};
  std::atomic<bool> broken{false};
  mutable std::atomic<std::size_t> looks{0};
  mutable std::atomic<std::size_t> seen_open{0};

 private:
  Result<bool> look() const override {
    ++looks;
    if (broken) return tl::unexpected<Error>({ErrorCode::kSystem, "the stream failed"});
    if (opened) ++seen_open;
    return opened.load();
  }
};

}  // namespace p2p::engine
