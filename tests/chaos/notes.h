// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>

namespace p2p::chaos {

/// The notifications that have not come: each comes at most once, and it must if its operation was done.
class Notes {
 public:
  void sent(std::uint64_t number, std::size_t bytes) { waited_for_[number] = {bytes, false}; }

  void done(std::uint64_t number) {
    if (const auto found = waited_for_.find(number); found != waited_for_.end()) found->second.due = true;
  }

  void never(std::uint64_t number) { waited_for_.erase(number); }

  void heard(std::uint64_t number, std::size_t bytes) {
    const auto found = waited_for_.find(number);
    if (found == waited_for_.end() || found->second.bytes != bytes) {
      throw std::runtime_error(
          fmt::format("notification {} of {} bytes came twice or was never sent", number, bytes));
    }
    waited_for_.erase(found);
  }

  bool due() const {
    return std::any_of(waited_for_.begin(), waited_for_.end(),
                       [](const auto& one) { return one.second.due; });
  }

  void clear() { waited_for_.clear(); }

 private:
  struct Note {
    std::size_t bytes = 0;
    bool due = false;
  };
  std::map<std::uint64_t, Note> waited_for_;
};

}  // namespace p2p::chaos
