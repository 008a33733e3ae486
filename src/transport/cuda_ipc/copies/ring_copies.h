// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "device/job.h"
#include "p2p/result.h"
#include "transport/batch.h"
#include "transport/cuda_ipc/memory/ring_slots.h"

namespace p2p::cuda_ipc {

/// A batch between memory here and memory of the peer's, neither of which can be shared.
class RingJob {
 public:
  RingJob(Operation operation, std::vector<Segment> pieces);

  /// Nothing is under way, and nothing more will be.
  bool ended() const { return !queued_ && under_way_ == 0; }
  const Status& status() const { return status_; }  ///< once it has ended

  /// Begins nothing more, and writes nothing more to memory here than what has begun, which ends within
  /// moments.
  void stop() {
    const bool writes_here = operation_ == Operation::kRead && under_way_ != 0;
    if (status_ && (more() || writes_here)) status_ = cancelled();
  }

 private:
  friend class RingCopies;
  bool more() const { return next_ != pieces_.size(); }
  void fail_with(const Error& error) {
    if (status_) status_ = tl::unexpected(error);
  }
  static Status cancelled();

  const Operation operation_;
  const std::vector<Segment> pieces_;
  std::uint64_t load_bytes_ = 0;  // of the ring, at a time
  std::size_t next_ = 0;          // the piece of which a part is next
  std::uint64_t offset_ = 0;      // in it
  bool queued_ = false;
  std::size_t under_way_ = 0;  // loads
  Status status_;
};

/// What goes through a run of slots at a time: this side copies between it and its memory, the peer between
/// it and the peer's.
struct RingLoad {
  struct Piece {
    std::byte* local = nullptr;
    std::uint64_t remote = 0;
    std::uint64_t at = 0;  ///< in the ring
    std::uint64_t size = 0;
  };

  enum class Stage : std::uint8_t { kCopying, kAsked, kAnswered };

  std::uint64_t number = 0;  ///< of what the peer is asked
  Operation operation = Operation::kWrite;
  std::shared_ptr<RingSlots> ring;
  RingSlots::Run slots;
  const Registration* registration = nullptr;  ///< of all pieces
  const RemoteKey* key = nullptr;
  std::vector<Piece> pieces;
  device::Job copies;  ///< of this side

  RingJob* job = nullptr;
  Stage stage = Stage::kCopying;
  Status status;
};

/// The jobs of one channel, load by load, so that both sides copy at the same time. Used by one thread at a
/// time.
class RingCopies {
 public:
  /// What copies on this side, and asks the peer to.
  class Hands {
   public:
    virtual ~Hands() = default;
    virtual Result<std::shared_ptr<RingSlots>> ring_for(const Segment& piece) = 0;

    /// False: not now.
    virtual Result<bool> start(RingLoad& load) = 0;

    /// And how that ended.
    virtual bool finished(RingLoad& load, Status& status) = 0;

    /// To answer with its number.
    virtual void ask(const RingLoad& load) = 0;
  };

  /// The top bit of a load's number.
  static constexpr std::uint64_t kNumbers = std::uint64_t{1} << 63;

  explicit RingCopies(Hands& hands) : hands_(hands) {}

  /// Slots that the peer may still use are lost. This side has stopped to copy.
  ~RingCopies();
  RingCopies(const RingCopies&) = delete;
  RingCopies& operator=(const RingCopies&) = delete;

  /// It stays until it has ended.
  void add(RingJob& job);

  /// False: nobody asked.
  bool answered(std::uint64_t number, Status status);

  /// Moves all on. True if anything moved.
  bool advance();

 private:
  bool move(RingLoad& load, bool& moved);
  bool copy(RingLoad& load);
  void end(RingLoad& load);
  bool start_next();
  bool start_load(RingJob& job);
  unsigned may_take(const RingSlots& ring, Operation operation) const;
  RingLoad cut(RingJob& job, std::uint64_t most) const;
  void wait(bool waits);
  void part();

  Hands& hands_;
  std::deque<RingJob*> jobs_;  // with loads to come, in turns
  std::list<RingLoad> loads_;
  std::uint64_t last_ = 0;
  std::shared_ptr<RingSlots> joined_;  // while there are jobs
  bool waits_ = false;                 // for a slot of that
  bool yields_ = false;                // to others who wait, in this turn
};

}  // namespace p2p::cuda_ipc
