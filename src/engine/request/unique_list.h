// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <unordered_set>
#include <vector>

namespace p2p::engine {

/// Puts each region that it is given into a list once. Few of them are looked through; for many there is a
/// set.
template <class T>
class UniqueList {
 public:
  explicit UniqueList(std::vector<std::shared_ptr<T>>& kept) : kept_(kept) {}

  void keep(const std::shared_ptr<T>& one) {
    if (kept_.size() <= kFew) {
      if (std::find(kept_.begin(), kept_.end(), one) != kept_.end()) return;
    } else {
      if (seen_.empty()) {
        for (const auto& earlier : kept_) seen_.insert(earlier.get());
      }
      if (!seen_.insert(one.get()).second) return;
    }
    kept_.push_back(one);
  }

 private:
  static constexpr std::size_t kFew = 16;

  std::vector<std::shared_ptr<T>>& kept_;
  std::unordered_set<const T*> seen_;
};

}  // namespace p2p::engine
