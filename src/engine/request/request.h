// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/request/post_unlock_actions.h"
#include "engine/request/segment_list.h"
#include "engine/request/stream_dependency.h"
#include "engine/request/stripe.h"
#include "engine/request/transfer.h"
#include "p2p/transfer.h"
#include "transport/batch.h"

namespace p2p::engine {

class Request;
struct WorkItem;

/// Why a lane takes no item any more.
struct Refusal {
  Error why;
  bool reroute = false;  ///< the connection lives: items go over its other transports
};

/// Whose submissions they are.
class RequestOwner {
 public:
  virtual ~RequestOwner() = default;

  /// Called once, after the last item, with no lock held.
  virtual void ended(const Request& request, Status status) = 0;

  /// Its transport was given up, and nothing moves of the item any more: it goes over another one that
  /// carries all of it, or fails with `why`. Called with no lock held.
  virtual void reroute(WorkItem item, const Error& why) = 0;

  /// It is stuck in its transport, which lives: it goes over another one that carries all of it. Where none
  /// does, it goes on there, or fails with `why` if too many channels were lost with it. Called with no lock
  /// held.
  virtual void reroute_stuck(WorkItem item, const Error& why) = 0;

  /// Its bytes are where they belong, and its request wants them verified: it ends when they are. Called with
  /// no lock held.
  virtual void verify(WorkItem item) = 0;
};

/// One post of a list: counts what is not done of it and keeps its first error. Thread-safe.
class Request {
 public:
  struct Post {
    std::shared_ptr<const SegmentList> list;
    std::shared_ptr<TransferState> state;
    std::shared_ptr<const StreamDependency> dependency;  ///< what its memory waits for; null: nothing
    std::optional<std::string> notification;
    Priority priority = Priority::kNormal;
    std::uint64_t rate = 0;  ///< bytes a second; 0: no bound
    bool verify = false;
  };

  Request(std::shared_ptr<RequestOwner> owner, Post post)
      : owner_(std::move(owner)),
        post_(std::move(post)),
        open_(static_cast<std::uint32_t>(post_.list->portions.size())) {}

  const SegmentList& list() const { return *post_.list; }
  const std::shared_ptr<TransferState>& state() const { return post_.state; }
  const std::optional<std::string>& notification() const { return post_.notification; }

  const StreamDependency* dependency() const { return post_.dependency.get(); }

  Priority priority() const { return post_.priority; }
  bool paced() const { return post_.rate != 0; }
  bool verifies() const { return post_.verify; }

  /// Of a paced one: the bytes that its rate allows at once.
  std::uint64_t burst() const;

  /// Of a paced one: so many bytes of it go to a channel. When the next may.
  std::chrono::steady_clock::time_point spend(std::uint64_t bytes, std::chrono::steady_clock::time_point now);

  /// The rest of it need not be done: it failed, was cancelled, or a region of it is gone.
  bool aborted() const;

  /// Says that some of an aborted request was left undone.
  void set_dropped();

  /// Keeps the first error.
  void set_error(Error error);

  /// Tells the owner the outcome.
  void end();

  /// Keeps the list of a reroute, to which items point, for as long as it lives. It goes `around` a
  /// transport.
  void keep(std::shared_ptr<const SegmentList> reroute, std::size_t around);

  /// What each moved, once it is done; empty: as its list says, without reroutes.
  std::vector<TransportShare> shares() const;

 private:
  friend struct WorkItem;

  struct Reroute {
    std::shared_ptr<const SegmentList> list;
    std::size_t around = 0;
  };

  const std::shared_ptr<RequestOwner> owner_;
  const Post post_;
  std::atomic<std::uint32_t> open_;  // items
  std::atomic<bool> failed_{false};
  mutable Mutex mutex_;
  std::optional<Error> error_ P2P_GUARDED_BY(mutex_);
  std::vector<Reroute> reroutes_ P2P_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point paid_until_ P2P_GUARDED_BY(mutex_){};  // by its rate
  std::atomic<bool> rerouted_{false};                                          // there are some
};

/// What a lane has to do of a request: all of a portion at first, from which batches are cut; those that
/// are on their way through a channel or wait to be sent again. Each ends once: by `close`, which `land` may
/// put off, `fail` or `drop`.
struct WorkItem {
  using Clock = std::chrono::steady_clock;

  std::shared_ptr<Request> request;
  Batch batch;

  /// Cuts off what fits one batch. What is left, if anything is, stays here.
  WorkItem cut(const BatchLimits& limits);

  bool empty() const { return batch.segments.empty(); }

  /// Null: it is not traced.
  TransferTrace* trace() const { return request->state()->trace(); }

  /// Its channel was lost. False if it is stuck: its channels are lost again and again, with no end for so
  /// long, or too many of them.
  bool note_loss(Clock::time_point now, Clock::duration patience);

  /// A batch with which many channels were lost is likely to be the cause.
  bool worn_out() const { return retries > kMostRetries; }
  static constexpr std::uint8_t kMostRetries = 16;
  std::uint8_t retries = 0;
  bool was_rerouted = false;    ///< it was stuck in another transport before
  Clock::time_point lost_at{};  ///< of its channels the first one

  std::size_t transport = 0;  ///< that it is to go over
  Clock::time_point due{};    ///< no channel gets any of it before; of a paced request

  /// Its bytes are where they belong: it is done, or is verified first.
  void land(PostUnlockActions& actions);

  /// It is done. The outcome of the request is told by `actions` if this was its last.
  void close(PostUnlockActions& actions);
  void fail(Error error, PostUnlockActions& actions);

  /// It is left undone, since the request is aborted.
  void drop(PostUnlockActions& actions);

  /// Its lane takes it no more: it fails, or the owner sends it over another transport.
  void refuse(const Refusal& refusal, PostUnlockActions& actions);

  /// It is stuck: the owner finds another way for it.
  void reroute_stuck(Error why, PostUnlockActions& actions);

  /// It becomes as many as the list has portions, each an item of the same request.
  std::vector<WorkItem> spread(const std::shared_ptr<const SegmentList>& list);
};

}  // namespace p2p::engine
