// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "drivers/verbs/queue_pair.h"
#include "p2p/result.h"

namespace p2p::verbs {

enum class Verb : std::uint8_t { kWrite, kRead };

/// One contiguous run on both sides.
struct Extent {
  std::byte* local = nullptr;
  std::uint64_t remote = 0;
  std::uint32_t size = 0;  ///< bytes, not 0
  std::uint32_t local_key = 0;
  std::uint32_t remote_key = 0;
};

/// Requests that one doorbell hands to the device together. Built and posted over and over, without
/// allocating. One thread at a time.
class Chain {
 public:
  /// At most `requests` of them, each within `limits` of the queue pair that it is posted to.
  Chain(unsigned requests, const QueuePairLimits& limits);
  ~Chain();
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  /// Joins the extent to the last request if it goes on where that ends at the peer, else makes one of it.
  /// False: all requests are taken.
  bool add(Verb verb, const Extent& extent);

  /// A request that moves no bytes and names no memory: it ends when the peer's device has answered.
  /// False: all requests are taken.
  bool add_probe();

  /// The next extent joins nothing that is in the chain so far.
  void seal() { sealed_ = true; }

  unsigned size() const { return size_; }  ///< requests

  /// Posts the requests under the ids from `first_id` on and empties the chain. The last one completes, and
  /// with it all before; of the others only failures are reported. After an error nobody knows which were
  /// posted.
  Status post(QueuePair& pair, std::uint64_t first_id);

 private:
  struct Storage;
  const unsigned most_;
  const QueuePairLimits limits_;
  unsigned size_ = 0;
  bool sealed_ = false;
  std::unique_ptr<Storage> storage_;
};

}  // namespace p2p::verbs
