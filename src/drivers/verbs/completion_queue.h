// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "drivers/verbs/device.h"
#include "p2p/result.h"

struct ibv_comp_channel;
struct ibv_cq;

namespace p2p::verbs {

/// How a request ended, as far as callers act on it.
enum class Outcome : std::uint8_t {
  kDone,
  kFlushed,        ///< its queue pair was in error
  kRemoteAccess,   ///< the peer's device refused key or range
  kRetryExceeded,  ///< the peer's device did not answer
  kLocalFault,     ///< this side's memory or request is wrong
  kFailed,         ///< anything else
};

struct WorkCompletion {
  std::uint64_t id = 0;  ///< of the request
  Outcome outcome = Outcome::kDone;
  bool received = false;        ///< of a receive; else of a request that was posted
  std::uint32_t immediate = 0;  ///< of a receive
  const char* text = "";        ///< the library's name for the outcome
};

/// Owns a completion queue and the channel that announces its completions. One thread at a time.
class CompletionQueue {
 public:
  static Result<std::unique_ptr<CompletionQueue>> open(std::shared_ptr<Device> device, unsigned depth);
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  /// How many came; never blocks.
  Result<std::size_t> poll(std::span<WorkCompletion> completions);

  /// Makes `fd` readable at the next completion. Poll once more afterwards: those before it do not count.
  Status arm();
  int fd() const;

  /// Makes `fd` unreadable again; true if it was readable.
  bool take_event();

  ibv_cq* handle() const { return queue_; }

 private:
  explicit CompletionQueue(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  const std::shared_ptr<Device> device_;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
};

}  // namespace p2p::verbs
