// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "drivers/verbs/completion_queue.h"
#include "drivers/verbs/device.h"
#include "p2p/result.h"

struct ibv_qp;

namespace p2p::verbs {

struct QueuePairLimits {
  unsigned requests = 0;      ///< in the send queue
  unsigned receives = 0;      ///< in the receive queue
  unsigned pieces = 1;        ///< of a request
  unsigned inline_bytes = 0;  ///< that a request may carry itself
};

/// All that joins two queue pairs, and how they treat each other.
struct Path {
  std::uint32_t peer_number = 0;
  std::uint32_t peer_sequence = 0;  ///< the first packet's number, 24 bits
  std::uint32_t sequence = 0;       ///< of this side's first packet
  std::array<std::byte, 16> peer_gid{};
  std::uint16_t peer_lid = 0;
  bool global = true;      ///< by GID; else by LID alone, within an InfiniBand subnet
  unsigned gid_index = 0;  ///< this side's
  unsigned mtu = 1024;     ///< bytes
  unsigned reads_out = 1;
  unsigned reads_in = 1;
  unsigned timeout = 14;  ///< for an answer: 4.096 us times two to this
  unsigned retries = 6;
  unsigned service_level = 0;
  unsigned traffic_class = 0;
};

/// Owns a reliable connected queue pair. Its completion queue outlives it. One thread at a time.
class QueuePair {
 public:
  /// As far as possible with `wanted`; `limits` says what was granted. Ready to be connected over `port`,
  /// and what peers may do is read and write registered memory.
  static Result<std::unique_ptr<QueuePair>> open(std::shared_ptr<Device> device, CompletionQueue& queue,
                                                 unsigned port, const QueuePairLimits& wanted);

  /// When it returns, the device touches no memory for this queue pair any more.
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  Status connect(const Path& path);

  /// Puts it in error: all that was posted comes back, flushed.
  Status stop();

  /// A message without bytes, which takes one of the peer's receives.
  Status post_word(std::uint64_t id, std::uint32_t word);

  /// Room for one word.
  Status post_receive(std::uint64_t id);

  std::uint32_t number() const;
  const QueuePairLimits& limits() const { return limits_; }
  const std::string& name() const { return name_; }
  ibv_qp* handle() const { return pair_; }

 private:
  QueuePair(std::shared_ptr<Device> device, unsigned port);
  Status make_ready_to_receive(const Path& path);
  Status make_ready_to_send(const Path& path);

  const std::shared_ptr<Device> device_;
  const unsigned port_;
  std::string name_;  ///< for messages
  ibv_qp* pair_ = nullptr;
  QueuePairLimits limits_;
};

}  // namespace p2p::verbs
