// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "conformance/memory.h"
#include "conformance/pattern.h"
#include "conformance/peer.h"
#include "transport/registry.h"

namespace p2p::conformance {

/// What transports are made with: the defaults and UCCL_P2P_* of the process, so that a run can choose a
/// plugin.
Options options();

/// What the two sides of a session agree on.
ChannelSetup session_of(Role role);

/// Two peers of one process, each with a transport of its own.
class Pair {
 public:
  explicit Pair(const TransportRegistry::Entry& entry);
  ~Pair();

  /// Opens the channels of both, exchanges addresses and waits until all are ready.
  Status connect(const ChannelSetup& left_setup = session_of(Role::kConnector),
                 const ChannelSetup& right_setup = session_of(Role::kAcceptor));

  Peer left;  ///< connects
  Peer right;
};

/// A piece of a transfer of `local.bytes()` from `offset` on.
Segment segment(const Memory& local, std::size_t offset, const RemoteKey& key, std::uint64_t remote,
                std::size_t size);

/// One test of the suite with one transport, whose name it has. Fails without the ones that need nothing but
/// a Linux host; reports any other that cannot be used here as skipped.
class Conformance : public ::testing::TestWithParam<TransportRegistry::Entry> {
 protected:
  void SetUp() override;

  /// Connected, or a failure.
  std::unique_ptr<Pair> connected();

  Capabilities capabilities_;
};

/// Runs a suite with every transport that comes with the library.
#define P2P_FOR_EVERY_TRANSPORT(suite)                                                         \
  INSTANTIATE_TEST_SUITE_P(All, suite, ::testing::ValuesIn(p2p::builtin_transports().entries), \
                           [](const auto& parameter) { return parameter.param.name; })

}  // namespace p2p::conformance

namespace p2p {

/// For GoogleTest's messages.
inline void PrintTo(const TransportRegistry::Entry& entry, std::ostream* out) { *out << entry.name; }

}  // namespace p2p
