// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "engine/context.h"
#include "engine/transfer.h"
#include "p2p/memory.h"

namespace p2p::engine {

/// Two-sided traffic of one connection, built on writes: a receive tells the peer where to, the n-th send of
/// one side writes to the n-th receive of the other. Thread-safe; messages come on the reactor's thread.
class Messages : public std::enable_shared_from_this<Messages> {
 public:
  /// What it needs of its connection.
  struct Link {
    SendMessage send;
    std::function<Result<RemoteSpan>(const wire::ReceiveSpan&)> import;

    /// Writes, and tells the outcome; returns the write's state, for cancelling.
    std::function<std::shared_ptr<TransferState>(std::span<const LocalSpan>, std::span<const RemoteSpan>,
                                                 std::function<void(Status)>)>
        write;
  };

  Messages(std::shared_ptr<Context> context, Link link)
      : context_(std::move(context)), link_(std::move(link)) {}

  std::shared_ptr<TransferState> send(std::span<const LocalSpan> message);
  std::shared_ptr<TransferState> receive(std::span<const LocalSpan> into);

  Status on(wire::ReceivePosted posted);
  Status on(const wire::ReceiveDone& done);
  Status on(const wire::ReceiveWithdrawn& withdrawn);

  std::uint64_t received() const;

  /// Mine that wait for the peer's answer.
  std::size_t receives_open() const;

  /// One side starts nothing more: fails what has not met its other half, and all that comes. What is under
  /// way goes on.
  void stop(const Error& error);

  /// The connection ended: fails everything.
  void close(const Error& error);

 private:
  struct Send {
    std::vector<LocalSpan> message;
    std::shared_ptr<TransferState> state;
  };
  struct Write {
    std::shared_ptr<TransferState> send;
    std::shared_ptr<TransferState> write;  ///< once it has started
  };
  struct Waiting {  // a receive of mine
    std::shared_ptr<TransferState> state;
    std::uint64_t room = 0;  ///< bytes
  };
  struct Receive {  // the peer's
    std::vector<wire::ReceiveSpan> spans;
    bool complete = false;
    bool withdrawn = false;
  };

  void match(std::uint64_t sequence);
  void start(std::uint64_t sequence, const Send& send, const Receive& receive);
  void finish(std::uint64_t sequence, const std::shared_ptr<TransferState>& state, Status status);
  void assist(std::uint64_t sequence, std::chrono::steady_clock::time_point deadline);
  void cancel_send(std::uint64_t sequence);
  Result<std::vector<wire::ReceiveSpan>> describe(std::span<const LocalSpan> into) const;

  const std::shared_ptr<Context> context_;
  const Link link_;

  mutable Mutex mutex_;
  bool closed_ P2P_GUARDED_BY(mutex_) = false;
  Error error_ P2P_GUARDED_BY(mutex_);
  std::uint64_t next_send_ P2P_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_receive_ P2P_GUARDED_BY(mutex_) = 0;
  std::uint64_t peer_receives_ P2P_GUARDED_BY(mutex_) = 0;  // number of the next ReceivePosted
  std::uint64_t received_ P2P_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, Send> sends_ P2P_GUARDED_BY(mutex_);  // not matched yet
  std::map<std::uint64_t, Receive> posted_ P2P_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Write> writes_ P2P_GUARDED_BY(mutex_);      // of matched sends
  std::map<std::uint64_t, Waiting> receives_ P2P_GUARDED_BY(mutex_);  // mine
};

}  // namespace p2p::engine
