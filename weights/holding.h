// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "node.h"
#include "pieces.h"
#include "samples.h"

namespace p2p::weights {

/// The most members of a class that are remembered.
inline constexpr std::size_t kMostMembers = 4096;

/// What this node has of a class, who is told of it, and who else takes part. Used by the node's thread.
class Holding {
 public:
  Holding(Node& node, const Key& key, Demand demand, TableAt table);

  const Key& key() const { return key_; }
  const Demand& demand() const { return demand_; }
  bool has(std::uint32_t chunk) const { return have_[chunk]; }
  std::uint64_t digest(std::uint32_t chunk) const { return digests_[chunk]; }
  std::uint32_t count() const { return count_; }
  bool whole() const { return count_ == have_.size(); }
  std::uint64_t bytes() const { return bytes_; }  ///< of the chunks that are here
  Account& account() { return account_; }

  /// Says to those who follow that it gives deltas. Called before one does.
  void give_deltas() { deltas_given_ = true; }

  /// A chunk is here, with a delta that makes it of the base, or without (empty): tells those who follow.
  void add(std::uint32_t chunk, std::uint64_t digest, std::string_view delta = {});
  /// Tells a peer what is here, and from now on what comes.
  void follow(const LinkPtr& link);

  const std::vector<Member>& members() const { return members_; }
  /// Learns of a member, or its new place in the chain.
  void learn(const Member& member);
  /// Puts a peer at the end of the chain, tells it and the others of each other, and it of what is here.
  void admit(const LinkPtr& link);
  /// Forgets a peer that is lost.
  void forget(const LinkPtr& link);

 private:
  /// Where the delta of a chunk lies.
  struct Place {
    std::size_t block = 0;
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
  };

  void keep(std::uint32_t chunk, std::string_view delta);
  void tell_delta(const LinkPtr& link, std::uint32_t chunk, const Place& place) const;

  Node& node_;
  Key key_;
  Demand demand_;
  TableAt table_;
  std::vector<bool> have_;
  std::vector<std::uint64_t> digests_;
  std::uint32_t count_ = 0;
  std::uint64_t bytes_ = 0;
  Account account_;
  bool deltas_given_ = false;
  std::map<std::uint32_t, Place> deltas_;
  std::vector<std::unique_ptr<LentTable>> blocks_;  // deltas one after another
  std::uint64_t block_used_ = 0;                    // of the last one
  std::vector<LinkPtr> followers_;
  std::vector<Member> members_;
};

}  // namespace p2p::weights
