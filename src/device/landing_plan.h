// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/copy.h"
#include "kernels/unpack.h"

namespace p2p::device {

/// How the bytes of a receive get from where a plugin left them to where they belong. Used again for each
/// receive: first where they lie, then where they belong, then the copies.
class LandingPlan {
 public:
  /// They lie in one piece.
  void lie_in_one(std::uint64_t bytes) {
    start();
    fragments_.push_back({0, static_cast<std::uint32_t>(bytes), 0});
  }

  /// They lie as a plugin listed them. False if that does not add up to `bytes`.
  template <class Entries>
  bool lie_as(const Entries& entries, std::uint64_t bytes) {
    start();
    for (const auto& entry : entries) fragments_.push_back({entry.source, entry.size, entry.destination});
    return kernels::fills(fragments_, bytes);
  }

  /// The next `bytes` of the message belong there.
  void belong(std::byte* data, std::uint64_t bytes) {
    blocks_.push_back({planned_, bytes, data});
    planned_ += bytes;
  }

  /// From a place, or a pool whose offsets the fragments have. To be taken away or left.
  std::vector<kernels::CopyBlock>& copies_from(const std::byte* source) {
    kernels::plan_unpack(source, fragments_, blocks_, copies_);
    return copies_;
  }

 private:
  void start() {
    fragments_.clear();
    blocks_.clear();
    copies_.clear();
    planned_ = 0;
  }

  std::vector<kernels::Fragment> fragments_;
  std::vector<kernels::Block> blocks_;
  std::vector<kernels::CopyBlock> copies_;
  std::uint64_t planned_ = 0;
};

}  // namespace p2p::device
