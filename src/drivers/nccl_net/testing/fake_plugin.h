// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace p2p::nccl_net::testing {

/// What a fake plugin shall answer and what it was asked, shared with the test by the symbol fake_state.
/// Its table is empty but for name and init until `init` has run, as that of some real plugins.
struct FakeState {
  void (*name)(const char* name) = nullptr;  ///< calls the plugin so
  int init_code = 0;
  bool init_aborts = false;
  int device_count = 1;
  bool leave_out_test = false;
  bool leave_out_optional = false;

  int inits = 0;
  int accepts_pending = 1;  ///< polls of accept and connect that answer "not yet"
  int connects_pending = 1;
  std::uint64_t registered = 0;
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  int consumed = 0;
  int flushed = 0;
  int flushes_pending = -1;  ///< tests of a flush that answer "not yet"; -1: a flush gives no request
  int closed = 0;
  int deregistered = 0;
};

using FakeStateFunction = FakeState* (*)();

}  // namespace p2p::nccl_net::testing
