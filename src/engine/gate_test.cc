// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/gate.h"

#include <gtest/gtest.h>

#include "support/eventually.h"

namespace p2p::engine {
namespace {

TEST(Gate, NoStreamIsNoGate) {
  const auto gate = gate_behind(nullptr);
  ASSERT_TRUE(gate);
  EXPECT_EQ(*gate, nullptr);
}

TEST(Gate, OpensOrSaysWhyTheStreamCannotBeWaitedFor) {
  const auto gate = gate_behind(reinterpret_cast<void*>(1));  // cudaStreamLegacy
  if (gate) {
    EXPECT_TRUE(testing::eventually([&] { return (*gate)->open().value(); }));
    return;
  }
  EXPECT_EQ(gate.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(gate.error().message.find("CUDA stream 0x1: "), std::string::npos) << gate.error().message;
}

}  // namespace
}  // namespace p2p::engine
