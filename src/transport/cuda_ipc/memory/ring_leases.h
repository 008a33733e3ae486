// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "base/process_id.h"
#include "drivers/cuda/window.h"
#include "transport/cuda_ipc/memory/chunk_server.h"
#include "transport/cuda_ipc/memory/key.h"
#include "transport/cuda_ipc/memory/mappings.h"
#include "transport/cuda_ipc/memory/ring_slots.h"
#include "transport/message_ring.h"
#include "transport/registration.h"

namespace p2p::cuda_ipc {

/// Memory of a GPU of this process that one peer process maps, too, and word rings for its channels. The peer
/// alone says what its slots are used for; here nothing but copies that it asks for touch them. Thread-safe.
class LeasedRing {
 public:
  LeasedRing(int device, cuda::Window memory, RingMemory words)
      : device_(device), memory_(std::move(memory)), words_(std::move(words)) {}

  int device() const { return device_; }
  std::byte* data() const { return memory_.data(); }
  const RingMemory& words() const { return words_; }

  /// False: there is no such pair, or a channel has it.
  bool take_words(unsigned pair) {
    return pair < kRingWords && (words_taken_.fetch_or(1U << pair) & 1U << pair) == 0;
  }

 private:
  const int device_;
  const cuda::Window memory_;
  const RingMemory words_;
  std::atomic<std::uint32_t> words_taken_{0};
};

/// Makes rings for the peers that ask for one, and knows which there are. A peer has its ring for as long as
/// it keeps the connection over which it got it. Thread-safe.
class RingLeases {
 public:
  RingLeases(const ProcessId& process, std::shared_ptr<Mappings> mappings)
      : process_(process), mappings_(std::move(mappings)) {}

  /// kUnavailable while there are too many, or no memory.
  Result<ChunkServer::Lease> lease(int device);

  /// The ring of this number; `token` came with it, so that nobody names another's. kNotFound otherwise.
  Result<std::shared_ptr<LeasedRing>> find(std::uint64_t number, const Token& token) const;

  /// For copies of this process to and from the ring, which it keeps.
  std::unique_ptr<RemoteKey> key_of(std::shared_ptr<LeasedRing> ring, RegionId region) const;

 private:
  struct Entry {
    Token token{};
    std::weak_ptr<LeasedRing> ring;
  };

  const ProcessId process_;
  const std::shared_ptr<Mappings> mappings_;
  mutable Mutex mutex_;
  std::uint64_t last_ P2P_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, Entry> rings_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::cuda_ipc
