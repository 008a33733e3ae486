// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "p2p/result.h"
#include "p2p/transfer.h"

namespace p2p::python {

/// The asynchronous transfers of an endpoint by small numbers, from 1. An id stays good after it was reported
/// as done: asking again gives the same outcome, until many others have failed since. Any thread.
class TransferTable {
 public:
  enum class Kind { kOneSided, kSend, kReceive };
  std::uint64_t next_id() { return next_.fetch_add(1); }
  void add(std::uint64_t id, Transfer transfer, Kind kind);

  /// The transfer while it is not yet reported; otherwise its outcome, or kNotFound for an id never given.
  struct Found {
    Transfer transfer;  ///< invalid once reported
    Status outcome;
  };
  Found find(std::uint64_t id) const;

  /// How many failures are remembered after they were reported.
  static constexpr std::size_t kFailuresKept = 4096;

  /// Takes the outcome of a transfer that is done, and drops the transfer.
  void report(std::uint64_t id, const Status& outcome);

  /// Ask every unreported receive, or every unreported transfer, to end.
  void cancel_receives() const;
  void cancel_all() const;

 private:
  std::atomic<std::uint64_t> next_{1};
  mutable std::mutex mutex_;
  struct Pending {
    Transfer transfer;
    Kind kind;
  };
  std::unordered_map<std::uint64_t, Pending> pending_;
  std::map<std::uint64_t, Error> failed_;
  std::uint64_t forgotten_ = 0;  ///< up to this id failures are no longer told from successes
};

/// Tells an event loop which transfers are done: a descriptor that becomes readable. Written by engine
/// threads, which never touch the interpreter. Any thread.
class Completions {
 public:
  static Result<std::shared_ptr<Completions>> create();
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  int fd() const { return fd_; }

  /// Has `id` listed once `transfer` is done.
  static void watch(const std::shared_ptr<Completions>& self, std::uint64_t id, const Transfer& transfer);

  void push(std::uint64_t id);

  /// The ids that were listed since the last call; the descriptor is quiet afterwards.
  std::vector<std::uint64_t> take();

 private:
  explicit Completions(int fd) : fd_(fd) {}

  const int fd_;
  std::mutex mutex_;
  std::vector<std::uint64_t> done_;
};

}  // namespace p2p::python
