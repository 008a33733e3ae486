// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "softnet/comm.h"
#include "softnet/devices.h"
#include "softnet/handle.h"
#include "softnet/socket.h"

namespace softnet {

/// First from the connector; the acceptor answers with the same.
struct Greeting {
  std::uint64_t magic = Handle::kMagic;
  std::uint64_t cookie = 0;
};

class AcceptThread;

/// Takes any number of connections.
class Listener {
 public:
  /// Null on failure, which is logged.
  static std::unique_ptr<Listener> open(const Device& device, Handle& handle);
  ~Listener();

  /// Null until a connection is complete. Strangers are turned away; with the habit that accept blocks the
  /// third that breaks off ends it with a code.
  std::unique_ptr<RecvComm> poll(int& code);

 private:
  struct Guest {
    UniqueFd socket;
    std::chrono::steady_clock::time_point deadline;
    Greeting greeting;
    std::size_t bytes = 0;
  };
  enum class Verdict { kWait, kWelcome, kLeave };
  UniqueFd take_guest();
  Verdict hear(Guest& guest) const;

  std::mutex mutex_;
  std::size_t packet_bytes_ = 0;
  UniqueFd socket_;
  std::shared_ptr<AcceptThread> thread_;  // if the habits want one
  std::uint64_t cookie_ = 0;
  std::vector<Guest> guests_;
};

/// Closes what hosts have begun to connect and then forgotten, once twice its time is over.
void end_stale_attempts();

/// Starts or continues the attempt that the handle names: 0 with a null comm until it is made, or a code.
int poll_connect(const Device& device, Handle& handle, std::unique_ptr<SendComm>& comm);

}  // namespace softnet
