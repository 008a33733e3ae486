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
#include "engine/deferred.h"
#include "engine/gate.h"
#include "engine/segment_list.h"
#include "engine/stripe.h"
#include "engine/transfer.h"
#include "transport/batch.h"

namespace p2p::engine {

class Submission;
struct Piece;

/// Why a lane takes no piece any more.
struct Refusal {
  Error why;
  bool detour = false;  ///< the connection lives: pieces go over its other transports
};

/// Whose submissions they are.
class Submitter {
 public:
  virtual ~Submitter() = default;

  /// Called once, after the last piece, with no lock held.
  virtual void ended(const Submission& submission, Status status) = 0;

  /// Hurries its end, on behalf of who cancels it.
  virtual void cancel(const Submission& submission) = 0;

  /// Its transport was given up, and nothing moves of the piece any more: it goes over another one that
  /// carries all of it, or fails with `why`. Called with no lock held.
  virtual void detour(Piece piece, const Error& why) = 0;

  /// It is stuck in its transport, which lives: it goes over another one that carries all of it. Where none
  /// does, it goes on there, or fails with `why` if too many channels were lost with it. Called with no lock
  /// held.
  virtual void divert(Piece piece, const Error& why) = 0;
};

/// One post of a list: counts what is not done of it and keeps its first error. Thread-safe.
class Submission {
 public:
  struct Post {
    std::shared_ptr<const SegmentList> list;
    std::shared_ptr<TransferState> state;
    std::shared_ptr<const Gate> gate;  ///< what its memory waits for; null: nothing
    std::optional<std::string> notification;
  };

  Submission(std::shared_ptr<Submitter> submitter, Post post)
      : submitter_(std::move(submitter)),
        post_(std::move(post)),
        open_(static_cast<std::uint32_t>(post_.list->portions.size())) {}

  const SegmentList& list() const { return *post_.list; }
  const std::shared_ptr<TransferState>& state() const { return post_.state; }
  const std::optional<std::string>& notification() const { return post_.notification; }

  const Gate* gate() const { return post_.gate.get(); }

  /// The rest of it need not be done: it failed, was cancelled, or a region of it is gone.
  bool doomed() const;

  /// Says that some of a doomed submission was left undone.
  void set_dropped();

  /// Keeps the first error.
  void set_error(Error error);

  /// Tells the submitter the outcome.
  void end();

  void cancel() const { submitter_->cancel(*this); }

  /// Keeps the list of a detour, to which pieces point, for as long as it lives. It goes `around` a
  /// transport.
  void keep(std::shared_ptr<const SegmentList> detour, std::size_t around);

  /// Of its list and its detours.
  std::vector<std::size_t> transports() const;

  /// What each moved, once it is done; empty: as its list says, without detours.
  std::vector<TransportShare> shares() const;

 private:
  friend struct Piece;

  struct Detour {
    std::shared_ptr<const SegmentList> list;
    std::size_t around = 0;
  };

  const std::shared_ptr<Submitter> submitter_;
  const Post post_;
  std::atomic<std::uint32_t> open_;  // pieces
  std::atomic<bool> failed_{false};
  mutable Mutex mutex_;
  std::optional<Error> error_ P2P_GUARDED_BY(mutex_);
  std::vector<Detour> detours_ P2P_GUARDED_BY(mutex_);
  std::atomic<bool> detoured_{false};  // there are some
};

/// What a lane has to do of a submission: all of a portion at first, from which batches are cut; those that
/// are on their way through a channel or wait to be sent again. Each ends once: by `close`, `fail` or `drop`.
struct Piece {
  using Clock = std::chrono::steady_clock;

  std::shared_ptr<Submission> submission;
  Batch batch;

  /// Cuts off what fits one batch. What is left, if anything is, stays here.
  Piece cut(const BatchLimits& limits);

  bool empty() const { return batch.segments.empty(); }

  /// Null: it is not traced.
  TransferTrace* trace() const { return submission->state()->trace(); }

  /// Its channel was lost. False if it is stuck: its channels are lost again and again, with no end for so
  /// long, or too many of them.
  bool note_loss(Clock::time_point now, Clock::duration patience);

  /// A batch with which many channels were lost is likely to be the cause.
  bool worn_out() const { return retries > kMostRetries; }
  static constexpr std::uint8_t kMostRetries = 16;
  std::uint8_t retries = 0;
  bool diverted = false;        ///< it was stuck in another transport before
  Clock::time_point lost_at{};  ///< of its channels the first one

  std::size_t transport = 0;  ///< that it is to go over

  /// It is done. The outcome of the submission is told by `deferred` if this was its last.
  void close(Deferred& deferred);
  void fail(Error error, Deferred& deferred);

  /// It is left undone, since the submission is doomed.
  void drop(Deferred& deferred);

  /// Its lane takes it no more: it fails, or the submitter sends it over another transport.
  void refuse(const Refusal& refusal, Deferred& deferred);

  /// It is stuck: the submitter finds another way for it.
  void divert(Error why, Deferred& deferred);

  /// It becomes as many as the list has portions, each a piece of the same submission.
  std::vector<Piece> spread(const std::shared_ptr<const SegmentList>& list);
};

}  // namespace p2p::engine
