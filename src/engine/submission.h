// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "engine/gate.h"
#include "engine/segment_list.h"
#include "engine/stripe.h"
#include "engine/transfer.h"

namespace p2p::engine {

/// One post of a list: counts its unfinished parts and keeps its first error. Thread-safe.
class Submission {
 public:
  Submission(std::shared_ptr<const SegmentList> list, std::shared_ptr<TransferState> state,
             std::shared_ptr<const Gate> gate, std::function<void(Status)> end)
      : list_(std::move(list)),
        state_(std::move(state)),
        gate_(std::move(gate)),
        end_(std::move(end)),
        parts_(static_cast<std::uint32_t>(list_->portions.size())) {}

  const SegmentList& list() const { return *list_; }
  const std::shared_ptr<TransferState>& state() const { return state_; }

  /// What its memory waits for; null: nothing.
  const Gate* gate() const { return gate_.get(); }

  /// The rest of it need not be done: it failed, was cancelled, or a region of it is gone.
  bool doomed() const;

  /// Says that some of a doomed submission was left undone.
  void set_dropped();

  /// Keeps the first error.
  void set_error(Error error);

  /// True for the last part.
  bool part_done() { return parts_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

  /// Tells the outcome; once, after the last part, with no lock held.
  void end();

 private:
  std::shared_ptr<const SegmentList> list_;
  std::shared_ptr<TransferState> state_;
  std::shared_ptr<const Gate> gate_;
  std::function<void(Status)> end_;
  std::atomic<std::uint32_t> parts_;
  std::atomic<bool> failed_{false};
  Mutex mutex_;
  std::optional<Error> error_ P2P_GUARDED_BY(mutex_);
};

/// Submissions whose last part is done, to be ended once no lock is held.
using Ended = std::vector<std::shared_ptr<Submission>>;
void end_all(Ended& ended);

/// What one lane has to do for a submission.
struct Part {
  std::shared_ptr<Submission> submission;
  const SegmentList::Portion* portion = nullptr;
  Cursor cursor;  ///< the lane's mutex guards it

  /// Pieces under way, and one more while there is something left to cut.
  std::atomic<std::uint32_t> open{1};

  /// One of `open` is over; adds the submission to `ended` if that was its last.
  void close_one(Ended& ended);
};

/// A cut of a part, on its way through a channel or waiting to be sent again.
struct Piece {
  std::shared_ptr<Part> part;
  Cut cut;
};

}  // namespace p2p::engine
