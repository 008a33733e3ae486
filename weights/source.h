// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "holding.h"
#include "table_read.h"

namespace p2p::weights {

/// How fast a member gets chunks and gives them.
struct Pace {
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_had{};          ///< when it told of a single chunk
  std::chrono::nanoseconds interval{0};  ///< between those, smoothed
  std::chrono::nanoseconds pull{0};      ///< of the latest chunk from it
  std::chrono::nanoseconds slowest{0};   ///< of the latest dozen that came whole, or so

  /// Between two of those: as it was, or as it is now if that is longer. It had no cause to tell before
  /// `since`.
  std::chrono::nanoseconds gap(Clock::time_point now, Clock::time_point since) const {
    return std::max<std::chrono::nanoseconds>(interval, now - std::max(last_had, since));
  }

  /// It gets a chunk in more than three times what it takes to get one from it.
  bool starves() const { return pull.count() > 0 && interval > 3 * pull; }

  /// A chunk came from it: `whole`, or as a delta.
  void gave(std::chrono::nanoseconds took, bool whole) {
    pull = took;
    if (whole) slowest = std::max(took, slowest - slowest / 8);
  }

  /// A chunk from it that takes longer does not come: many times what the slowest took, if any came, else
  /// what `bytes`, all that are under way, take at a slow rate. A member that dies mostly tells it by its
  /// sockets; where it does not, this is what its death costs.
  std::chrono::nanoseconds patience(std::uint64_t bytes) const;

  void had(Clock::time_point now) {
    if (last_had != Clock::time_point()) interval = (interval + (now - last_had)) / 2;
    last_had = now;
  }
};

/// Another member, as somebody who gives chunks to this one. Used by the node's thread.
class Source {
 public:
  Source(Node& node, const Holding& into, const Member& member);

  Member member;
  bool slow = false;  ///< comes after all others from now on
  Pace pace;
  std::set<std::uint32_t> bad;  ///< chunks that came wrong from it

  bool is_publisher() const { return member.order == 0; }
  const LinkPtr& link() const { return link_; }
  bool lost() const { return lost_; }
  void lose();
  /// May be asked again.
  void find_again() { lost_ = false; }
  /// Either side came again: what it had is asked anew.
  void renew(const Member& who) { lose(), find_again(), member = who; }

  /// Dials and asks what it has, once.
  void follow();
  /// It tells unasked, by this link.
  void follow_by(const LinkPtr& link) { link_ = link, asked_ = true; }
  /// It has answered.
  bool heard() const { return table_.has_value(); }
  void laid_out(const Layout& layout);
  /// Where its delta of a chunk lies. Said by a peer: `Fetch` reads no more than half a chunk.
  void has_delta(const Delta& delta);
  const Delta* delta(std::uint32_t chunk) const;
  /// It says so, or has not answered.
  bool gives_deltas() const { return gives_deltas_; }
  /// False: this chunk is not one.
  bool has_come(const ChunkDigest& row);
  bool has(std::uint32_t chunk) const { return have_[chunk]; }
  std::uint32_t count() const { return count_; }
  /// Chunks that it has and this node lacks.
  std::uint32_t useful() const { return useful_; }
  /// This node lacks it no more.
  void came(std::uint32_t chunk) { useful_ -= have_[chunk] ? 1 : 0; }

  /// Has its table, and can be read from; fetches it at the first call. An error: its table is no good.
  Result<bool> ready();
  /// Its table has been on its way for longer than even a slow member takes for it.
  bool keeps_waiting(Pace::Clock::time_point now) const;

  /// Starts to read a chunk into pieces of this node's memory. Null: not `ready`.
  Result<Transfer> read(std::uint32_t chunk, const Lent& lent, const std::vector<Piece>& into);

 private:
  Status take_table(const std::string& bytes);

  Node& node_;
  const Holding& into_;
  LinkPtr link_;
  bool asked_ = false;
  bool lost_ = false;
  std::vector<bool> have_;
  std::uint32_t count_ = 0;   // of those
  std::uint32_t useful_ = 0;  // of those
  bool gives_deltas_ = true;
  std::map<std::uint32_t, Delta> deltas_;
  std::optional<TableAt> table_;
  std::unique_ptr<TableRead> reading_;
  Pace::Clock::time_point reading_since_;
  OwnedTable owned_;  // of a publisher; its pieces refer to it
  std::unique_ptr<Pieces> pieces_;
  std::vector<RegionDescriptor> regions_;
  std::vector<std::optional<RemoteRegionId>> imported_;
};

}  // namespace p2p::weights
