// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/memory/peer_budget.h"
#include "p2p/result.h"
#include "wire/messages.h"

namespace p2p::engine {

/// The receives that the peer has posted and that have met no send of this side yet, by their numbers. Bounds
/// what a peer can make this side keep. Not thread-safe.
class PostedReceives {
 public:
  using Sequence = std::uint64_t;
  struct Receive {
    std::vector<wire::ReceiveSpan> spans;
    bool withdrawn = false;  ///< `spans` is empty then; it fails the send with its number
  };
  using Numbered = std::pair<Sequence, Receive>;

  /// `most`: receives kept at once (Options::max_posted_receives). `budget`: for their bytes.
  PostedReceives(std::size_t most, std::shared_ptr<PeerBudget> budget)
      : most_(most), kept_(std::move(budget)) {}

  /// Takes one part of a receive; a receive of many spans comes in several messages. The whole once its last
  /// part has come, else nothing. kProtocol beyond the bounds, for spans that no memory can have, and for
  /// parts of two receives mixed.
  Result<std::optional<Numbered>> assemble(wire::ReceivePosted& part);

  /// Keeps one until its send is there. kProtocol if the number is there already.
  Status add(Numbered receive);

  /// Null: the peer has not posted it. Valid until the next call that changes the object.
  const Receive* find(Sequence sequence) const;

  /// The peer gives one up, which counts no more: those withdrawn are kept as runs of numbers, and only the
  /// runs count. False if it was not posted, or is withdrawn already.
  bool withdraw(Sequence sequence);

  /// Takes it out; nothing if the peer has not posted it.
  std::optional<Receive> take(Sequence sequence);
  void erase(Sequence sequence) { static_cast<void>(take(sequence)); }
  void clear() {
    whole_.clear();
    withdrawn_.clear();
    partial_.reset();
    static_cast<void>(kept_.set(0));
  }

  /// Whether the one that came last lies on a device: the best guess for the next one.
  bool last_on_device() const { return last_on_device_; }

 private:
  using Runs = std::map<Sequence, Sequence>;  // the first of each, and the number after its last

  Runs::const_iterator run_of(Sequence sequence) const;
  bool take_withdrawn(Sequence sequence);
  void give_back(const Receive& receive);

  const std::size_t most_;
  std::map<Sequence, Receive> whole_;
  Runs withdrawn_;
  std::optional<Numbered> partial_;
  PeerShare kept_;  // by all of them
  bool last_on_device_ = false;
};

/// Whether any of them is device memory.
bool on_device(const PostedReceives::Receive& receive);

}  // namespace p2p::engine
