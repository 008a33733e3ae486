// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "support/sides.h"

namespace p2p::testing {

/// Writes to the peer's memory and reads into this side's, of which one takes its own back: from then on it
/// is as its owner left it.
class Taken {
 public:
  explicit Taken(Sides& sides) : sides_(sides) {}

  void start() {
    const LocalSpan here = sides_.own.span(0, Sides::kSize);
    transfers_.push_back(writes_ ? sides_.connection.write(here, sides_.target)
                                 : sides_.connection.read(here, sides_.target));
    writes_ = !writes_;
  }

  void take_back_there() {
    EXPECT_TRUE(is_ok(status_of(sides_.peer.call(fmt::format("drop_region {}", sides_.theirs.index)))));
    sides_.peer.number(fmt::format("clear {} 0 {}", sides_.theirs.index, Sides::kSize));
  }
  void take_back_here() {
    EXPECT_TRUE(is_ok(sides_.own.region.release(kLimit)));
    fill(sides_.own.pages.bytes(), kKept);
  }

  void expect_untouched(bool there) {
    for (const Transfer& one : transfers_) {
      const Status ended = one.wait(kLimit);
      if (!ended) {
        EXPECT_TRUE(is_error(ended, {ErrorCode::kNotFound, ErrorCode::kPermissionDenied}));
      }
    }
    if (there) {
      const auto clear = fmt::format("check_clear {} 0 {}", sides_.theirs.index, Sides::kSize);
      EXPECT_TRUE(is_ok(status_of(sides_.peer.call(clear))));
    } else {
      EXPECT_EQ(difference(sides_.own.pages.bytes(), kKept), std::nullopt);
    }
  }

 private:
  static constexpr std::uint64_t kKept = 99;

  Sides& sides_;
  bool writes_ = true;
  std::vector<Transfer> transfers_;
};

}  // namespace p2p::testing
