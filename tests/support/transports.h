// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace p2p::testing {

/// Tests that run over each transport that joins two processes.
class OverTransport : public ::testing::TestWithParam<const char*> {};

inline std::string transport_name(const ::testing::TestParamInfo<const char*>& info) { return info.param; }

#define P2P_OVER_TRANSPORTS(suite) \
  INSTANTIATE_TEST_SUITE_P(Over, suite, ::testing::Values("tcp", "cma"), transport_name)

/// The same, and over encrypted streams: see `plan_over`.
#define P2P_OVER_TRANSPORTS_AND_TLS(suite) \
  INSTANTIATE_TEST_SUITE_P(Over, suite, ::testing::Values("tcp", "cma", "tcp_tls"), transport_name)

}  // namespace p2p::testing
