// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string_view>

#include "conformance/process.h"

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--serve") return p2p::conformance::serve({argv[2], argv[3]});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
