// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace p2p::engine {

/// Finds out over a short path whether each stream is capped on its way, so that more of them carry more:
/// opens as many again, keeps them if the rate of all together rises enough, and gives them back if not
/// (docs/decisions/more-streams.md has the rules). By the caller's clock; called at looks, while there is
/// much to do. Not thread-safe.
class GrowthTrial {
 public:
  using Clock = std::chrono::steady_clock;

  /// Between two looks, while there is something to find out.
  static constexpr std::chrono::milliseconds kLook{100};

  /// After a trial that added nothing there is no other one for so long; after one that found no end, since
  /// there was nothing more to do.
  static constexpr std::chrono::seconds kHoldAfterNoGain{60};
  static constexpr std::chrono::seconds kHoldAfterNothing{10};

  /// The same where the trials before it have shown a gain.
  static constexpr std::chrono::seconds kHoldAfterGain{1};

  /// What is seen of all streams together.
  struct Look {
    Clock::time_point now;
    std::uint64_t moved = 0;  ///< bytes so far, both ways
    bool path_bound = false;  ///< what is to be moved waits for the path, and for no thread on either side
    std::size_t up = 0;
    std::size_t may_come = 0;  ///< that could be opened besides
    bool settled = true;       ///< none is on its way up
  };

  struct Step {
    Clock::time_point next;     ///< look
    std::size_t add = 0;        ///< open so many
    std::size_t give_back = 0;  ///< of those that were added last
    bool gained = false;        ///< those that were added are kept
  };

  Step look(const Look& look);

  bool runs() const { return trial_.has_value(); }

  /// There is nothing to do any more. How many are to be given back.
  std::size_t stop(Clock::time_point now, std::size_t up);

  /// Nothing is tried until then.
  void hold(Clock::time_point until);

 private:
  struct Trial {
    std::size_t before = 0;  // streams
    double rate = 0;         // of those, bytes a second
    bool first = false;      // of several in a row
    unsigned looks = 0;      // since all were up
    unsigned pauses = 0;     // looks at which too little was moved to tell
    unsigned gains = 0;      // of those that showed one
  };

  std::optional<double> rate_since_last(const Look& look);
  Step judge(const Look& look, double rate);
  Step begin(const Look& look, double rate, bool first);

  std::optional<Clock::time_point> hold_until_;
  std::optional<Clock::time_point> last_at_;  // look
  std::uint64_t last_moved_ = 0;
  unsigned looks_ = 0;  // in a row at which the path was the bound
  double best_ = 0;     // rate at those
  std::optional<Trial> trial_;
};

}  // namespace p2p::engine
