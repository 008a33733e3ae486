// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "p2p/weights/subscriber.h"
#include "patcher.h"
#include "source.h"

namespace p2p::weights {

/// A chunk that is read from a member, or has come and is hashed or made of its delta.
struct Pull {
  std::uint32_t chunk = 0;
  Source* source = nullptr;
  std::chrono::steady_clock::time_point start;
  Transfer transfer{};
  std::unique_ptr<TableRead> delta{};         ///< what comes is this, not the chunk
  Digest digest{};                            ///< of what has come
  Job<std::optional<std::uint64_t>> patch{};  ///< of the delta; reads that, and ends first

  /// Once it has come: if it is a delta, and there is room.
  void start_patch(Patcher& patcher, std::uint64_t expected) {
    if (delta && !patch.valid()) patch = patcher.start(chunk, delta->bytes(), expected);
  }
  bool checked() const { return delta ? patch.valid() && patch.done() : digest.done(); }
  /// The digest, once checked.
  Result<std::optional<std::uint64_t>> found() {
    if (delta) return patch.take();
    return digest.wait(std::chrono::nanoseconds(0));
  }
};

/// Fills a holding from other members: from the one before in the chain, and past it where it is lost, slow
/// or wrong. Used by the node's thread.
class Fetch {
 public:
  using Clock = std::chrono::steady_clock;

  /// All four outlive it. `lent` is the memory of `pieces`.
  Fetch(Node& node, Holding& holding, const HeldPieces& pieces, const Lent& lent,
        std::chrono::milliseconds stall);
  ~Fetch();
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;

  void tell(const LinkPtr& link, const Member& member);
  void laid_out(const LinkPtr& link, const Layout& layout);
  void has_delta(const LinkPtr& link, const Delta& delta);
  void have(const LinkPtr& link, const std::vector<ChunkDigest>& chunks);
  void lost(const LinkPtr& link);

  /// The base of deltas lies there; none: it is not here, or not any more, which `why` says.
  void use_base(std::optional<VersionMemory> base, std::string why);

  /// What is due; true: there is more, at once. An error: it cannot be filled.
  Result<bool> step();
  /// After each step: whether this member waits for another one now.
  void note_wait();
  const Progress& progress() const { return progress_; }  ///< its times count from when this was made

 private:
  Source* at(const LinkPtr& link) const;  // null: it is none of the members
  void rank();
  void follow();
  bool finish_pulls();
  bool finish_checks();
  void begin_check(Pull pull);
  void end_check(const Pull& pull, const Result<std::optional<std::uint64_t>>& found);
  Status check(const Pull& pull, bool right);
  void miss(std::uint32_t chunk);
  Result<bool> begin(Pull& pull);
  void pass_slow(Clock::time_point now);
  void try_publisher(Source& first, Source& publisher, Clock::time_point now);
  void note_time(const Pull& pull, std::chrono::nanoseconds took);
  void pass(Source& source, const std::string& why);
  bool pull(Source& source, std::uint32_t chunk, Clock::time_point now);
  void start_pulls(Clock::time_point now);
  Source* source_of(std::uint32_t chunk);
  Status check_stall(Clock::time_point now);
  bool missing(std::uint32_t chunk) const { return !holding_.has(chunk) && !pulled_[chunk]; }

  Node& node_;
  Holding& holding_;
  const HeldPieces& pieces_;
  const Lent& lent_;
  const std::chrono::milliseconds stall_;
  const Clock::time_point begun_ = Clock::now();
  std::optional<std::uint32_t> order_;  // own, in the chain; none: not admitted yet
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<Source*> ranked_;  // those not lost, the one to take from first
  bool reorder_ = true;          // `ranked_` is of before
  bool look_ = true;             // there may be a chunk to take
  Patcher patcher_;
  std::vector<Pull> pulls_;
  std::vector<Pull> checks_;                           // those that have come and are hashed, in that order
  std::vector<bool> pulled_;                           // chunks of both
  std::vector<std::optional<std::uint64_t>> digests_;  // as told
  std::vector<bool> told_by_publisher_;                // which of them
  std::uint32_t first_missing_ = 0;                    // all before it are here
  Clock::time_point moved_;                            // when a chunk came last
  Clock::time_point starved_;                          // when there was something to take from the first one
  std::optional<std::uint32_t> tried_;                 // the chunk that showed how fast the publisher is
  Clock::time_point hope_;          // when somebody had what is missing, or the publisher answered
  Clock::time_point looked_again_;  // for members that were lost
  std::map<std::uint32_t, std::uint32_t> wrong_;  // how often a chunk came wrong
  std::optional<Error> failed_;
  Progress progress_;
};

}  // namespace p2p::weights
