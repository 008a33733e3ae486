// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "drivers/verbs/library.h"

namespace p2p::verbs::testing {

/// How a request can be made to end.
enum class Failure : std::uint8_t { kRemoteAccess, kRetryExceeded, kLocalFault };

/// libibverbs and a device without hardware: it counts, does all transfers by memory copies when they are
/// posted, keeps the rules (keys, bounds, depths, states) and fails when told. Queue pairs of one process are
/// connected by their numbers. One at a time in a process; the handles made with it go first. Any thread.
class FakeProvider {
 public:
  struct Settings {
    unsigned devices = 1;  ///< "fake0" and so on, each with one port
    unsigned requests = 1024;
    unsigned pieces = 4;
    unsigned inline_bytes = 64;
    unsigned reads = 16;
    unsigned pieces_granted = ~0U;   ///< queue pairs with more are refused, whatever the device says it has
    unsigned most_registered = ~0U;  ///< bytes; larger ranges cannot be registered
    bool counts_only = false;        ///< requests succeed and move nothing
  };

  /// What a queue pair was connected with last.
  struct Connected {
    unsigned mtu = 0;  ///< bytes
    unsigned gid_index = 0;
    unsigned service_level = 0;
    unsigned traffic_class = 0;
    unsigned timeout = 0;
    unsigned retries = 0;
    unsigned reads_out = 0;
    unsigned reads_in = 0;
  };

  struct Counts {
    std::uint64_t doorbells = 0;
    std::uint64_t requests = 0;
    std::uint64_t completing = 0;  ///< requests that ask for a completion
    std::uint64_t carried = 0;     ///< inline requests
    std::uint64_t pieces = 0;
    std::uint64_t queue_pairs = 0;  ///< that were ever made
    unsigned most_outstanding = 0;  ///< requests in one send queue at once
    bool overrun = false;           ///< a queue was given more than it has room for
  };

  explicit FakeProvider(const Settings& settings);
  ~FakeProvider();
  FakeProvider(const FakeProvider&) = delete;
  FakeProvider& operator=(const FakeProvider&) = delete;

  const Library& library() const;
  Counts counts() const;
  Connected connected() const;

  /// Requests wait in their queues from now on.
  void hold();

  /// Does up to `requests` of those that wait in each queue, and goes on holding.
  void step(unsigned requests);

  /// Does what waits, and no longer holds.
  void release();

  /// The request after the next `after` ones that are done fails.
  void fail_after(std::uint64_t after, Failure failure);

  /// Says it as an event; while a port is down its requests fail, as if nobody answered.
  void set_port(unsigned device, bool up);

  /// The device says that it is broken.
  void break_device(unsigned device);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace p2p::verbs::testing
