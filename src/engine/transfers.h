// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "engine/gate.h"
#include "engine/imports.h"
#include "engine/lanes.h"
#include "engine/lifecycle.h"
#include "engine/notifications.h"
#include "engine/parked_transfers.h"
#include "engine/segment_list.h"
#include "engine/submission.h"
#include "engine/trace.h"
#include "engine/transfer.h"
#include "engine/transfer_records.h"

namespace p2p::engine {

class PreparedList;

/// The writes and reads of one connection, from the call to the outcome: lists are built, parked until the
/// peer's word about their regions is there, started on their lanes and recorded. Thread-safe.
class Transfers : public Submitter, public std::enable_shared_from_this<Transfers> {
 public:
  /// What they need of their connection.
  struct Parts {
    std::shared_ptr<const Lifecycle> life;
    std::shared_ptr<const RegionTable> regions;
    std::shared_ptr<Imports> imports;
    std::shared_ptr<Lanes> lanes;
    std::shared_ptr<Notifications> notifications;
    std::function<void()> ended;  ///< one did while the connection was not open
    ConnectionId connection{};
    std::shared_ptr<Trace> trace;  ///< null: none is written
  };

  explicit Transfers(Parts parts)
      : parts_(std::move(parts)),
        router_(parts_.lanes->router()),
        records_(parts_.regions->transports(), parts_.connection, parts_.trace) {}

  /// Checks the lists and starts them, or parks them until the peer's word is there.
  std::shared_ptr<TransferState> start(Operation operation, std::span<const LocalSpan> local,
                                       std::span<const RemoteSpan> remote, const PostOptions& options);

  /// Null while a remote region waits for the peer's word.
  Result<std::shared_ptr<const SegmentList>> build(Operation operation, std::span<const LocalSpan> local,
                                                   std::span<const RemoteSpan> remote,
                                                   const HeldRegions& held = {}) const;

  /// Posts a list that `build` made.
  std::shared_ptr<TransferState> post(const std::shared_ptr<const SegmentList>& list,
                                      const PostOptions& options);

  /// Builds `list` to `remote` as soon as the peer's word is there, so that its first post need not.
  void build_later(const std::shared_ptr<PreparedList>& list, std::span<const RemoteSpan> remote);

  /// None is parked or under way.
  bool done() const { return under_way_.load(std::memory_order_acquire) == 0; }

  const TransferRecords& records() const { return records_; }

  /// The connection ended: fails what is parked. What is under way ends with its lane.
  void close(const Error& error);

 private:
  std::shared_ptr<Slot> launch(const std::shared_ptr<const SegmentList>& list,
                               const std::shared_ptr<TransferState>& state, const PostOptions& options,
                               std::shared_ptr<const Gate> gate);
  void ended(const Submission& submission, Status status) override;
  void cancel(const Submission& submission) override;
  void detour(Piece piece, const Error& why) override;
  void divert(Piece piece, const Error& why) override;
  Result<std::shared_ptr<const SegmentList>> way_of(const Piece& piece,
                                                    std::optional<std::size_t> around) const;
  void send(Piece piece, const std::shared_ptr<const SegmentList>& way, Deferred& deferred);
  std::shared_ptr<Slot> submit(const SegmentList& list, const std::shared_ptr<Submission>& submission) const;
  std::shared_ptr<Slot> submit(Piece piece, std::size_t transport, Deferred& deferred) const;
  void let_waiter_assist(const SegmentList& list, TransferState& state,
                         const std::shared_ptr<Slot>& started) const;
  void finish(const SegmentList& list, TransferState& state, Status status,
              std::span<const TransportShare> shares = {});
  void fail_early(TransferState& state, Error error);
  void park(const std::shared_ptr<ParkedTransfer>& parked);
  void start_parked(const TransferState& state);

  const Parts parts_;
  const std::shared_ptr<const Router> router_;

  std::atomic<std::uint32_t> under_way_{0};
  TransferRecords records_;
  ParkedTransfers parked_;
};

}  // namespace p2p::engine
