// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fetch.h"

namespace p2p::weights {

/// A version that is here or on its way.
struct Held {
  std::uint64_t version = 0;
  Demand demand;
  HeldPieces pieces{{}};
  Lent lent;
  std::unique_ptr<LentTable> wish;   // the demand, for the publisher
  std::unique_ptr<LentTable> table;  // for those who follow
  LinkPtr directory;                 // was asked to join
  std::vector<LinkPtr> refused;
  std::string why;  // it was refused
  Key replaced;     // whose memory this is: each of its bytes is that of the same place
  Key base;         // of its deltas
  std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
  std::chrono::nanoseconds offered{0};  // after that, as is the next
  std::chrono::nanoseconds joined{0};
  bool admitted = false;
  std::optional<Error> failed;
  std::unique_ptr<Holding> holding;
  std::unique_ptr<Fetch> fetch;  // null: whole, or not joined yet

  Progress progress() const;  // with a fetch
  void tell(Samples& samples) const;
};

}  // namespace p2p::weights
