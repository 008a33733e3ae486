// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/request/stream_dependency.h"

#include <gtest/gtest.h>

#include "support/eventually.h"

namespace p2p::engine {
namespace {

TEST(StreamDependency, NoStreamIsNoGate) {
  const auto dependency = dependency_behind(nullptr);
  ASSERT_TRUE(dependency);
  EXPECT_EQ(*dependency, nullptr);
}

TEST(StreamDependency, OpensOrSaysWhyTheStreamCannotBeWaitedFor) {
  const auto dependency = dependency_behind(reinterpret_cast<void*>(1));  // cudaStreamLegacy
  if (dependency) {
    EXPECT_TRUE(testing::eventually([&] { return (*dependency)->met().value(); }));
    return;
  }
  EXPECT_EQ(dependency.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(dependency.error().message.find("CUDA stream 0x1: "), std::string::npos)
      << dependency.error().message;
}

}  // namespace
}  // namespace p2p::engine
