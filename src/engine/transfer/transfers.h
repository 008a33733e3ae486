// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "engine/channels/lane_set.h"
#include "engine/messaging/notifications.h"
#include "engine/observe/trace.h"
#include "engine/request/lifecycle.h"
#include "engine/request/request.h"
#include "engine/request/segment_list.h"
#include "engine/request/stream_dependency.h"
#include "engine/request/transfer.h"
#include "engine/transfer/pending_transfers.h"
#include "engine/transfer/region_exchange.h"
#include "engine/transfer/transfer_records.h"
#include "engine/transfer/verifier.h"

namespace p2p::engine {

class PreparedList;

/// The writes and reads of one connection, from the call to the outcome: lists are built, pending until the
/// peer's message about their regions is there, started on their lanes and recorded. Thread-safe.
class Transfers : public RequestOwner, public std::enable_shared_from_this<Transfers> {
 public:
  /// What they need of their connection.
  struct Parts {
    std::shared_ptr<const Lifecycle> life;
    std::shared_ptr<const RegionTable> regions;
    std::shared_ptr<RegionExchange> imports;
    std::shared_ptr<LaneSet> lanes;
    std::shared_ptr<Notifications> notifications;
    std::shared_ptr<Verifier> verifier;
    std::function<void()> ended;  ///< one did while the connection was not open
    ConnectionId connection{};
    std::shared_ptr<Trace> trace;  ///< null: none is written
  };

  explicit Transfers(Parts parts)
      : parts_(std::move(parts)),
        router_(parts_.lanes->router()),
        records_(parts_.regions->transports(), parts_.connection, parts_.trace) {}

  /// Checks the lists and starts them, or parks them until the peer's message is there. `strided`: as of
  /// build_list.
  std::shared_ptr<TransferState> start(Operation operation, std::span<const LocalSpan> local,
                                       std::span<const RemoteSpan> remote, const PostOptions& options,
                                       std::span<const StridedPair> strided = {});
  std::shared_ptr<TransferState> start(Operation operation, std::span<const LocalStrided> local,
                                       std::span<const RemoteStrided> remote, const PostOptions& options);

  /// Null while a remote region waits for the peer's message. `held`: the local regions of a transfer that
  /// was taken before, which a close lets finish.
  Result<std::shared_ptr<const SegmentList>> build(Operation operation, std::span<const LocalSpan> local,
                                                   std::span<const RemoteSpan> remote,
                                                   std::span<const StridedPair> strided,
                                                   const HeldRegions* held = nullptr) const;

  /// Posts a list that `build` made.
  std::shared_ptr<TransferState> post(const std::shared_ptr<const SegmentList>& list,
                                      const PostOptions& options);

  /// Builds `list` to `remote` as soon as the peer's message is there, so that its first post need not.
  void build_later(const std::shared_ptr<PreparedList>& list, std::span<const RemoteSpan> remote);

  /// None is pending or under way.
  bool done() const { return under_way_.load(std::memory_order_acquire) == 0; }

  const TransferRecords& records() const { return records_; }
  const std::shared_ptr<Verifier>& verifier() const { return parts_.verifier; }

  /// The connection ended: fails what is pending. What is under way ends with its lane.
  void close(const Error& error);

 private:
  std::shared_ptr<TransferState> begin(Operation operation, std::uint64_t bytes, std::size_t spans,
                                       const PostOptions& options);
  void cancel(const std::shared_ptr<TransferState>& state);
  std::shared_ptr<ChannelRunner> launch(const std::shared_ptr<const SegmentList>& list,
                                        const std::shared_ptr<TransferState>& state,
                                        const PostOptions& options,
                                        std::shared_ptr<const StreamDependency> dependency);
  void ended(const Request& request, Status status) override;
  void reroute(WorkItem item, const Error& why) override;
  void reroute_stuck(WorkItem item, const Error& why) override;
  void verify(WorkItem item) override;
  Result<std::shared_ptr<const SegmentList>> way_of(const WorkItem& item,
                                                    std::optional<std::size_t> around) const;
  void send(WorkItem item, const std::shared_ptr<const SegmentList>& way, PostUnlockActions& actions);
  std::shared_ptr<ChannelRunner> submit(const SegmentList& list,
                                        const std::shared_ptr<Request>& request) const;
  std::shared_ptr<ChannelRunner> submit(WorkItem item, std::size_t transport,
                                        PostUnlockActions& actions) const;
  void let_waiter_assist(const SegmentList& list, TransferState& state,
                         const std::shared_ptr<ChannelRunner>& started) const;
  void finish(const SegmentList& list, TransferState& state, Status status,
              std::span<const TransportShare> shares = {});
  void fail_early(TransferState& state, Error error);
  void park(const std::shared_ptr<PendingTransfer>& pending);
  void start_pending(const TransferState& state);

  const Parts parts_;
  const std::shared_ptr<const Router> router_;

  std::atomic<std::uint32_t> under_way_{0};
  TransferRecords records_;
  PendingTransfers pending_;
};

}  // namespace p2p::engine
