// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "engine/request/request.h"
#include "engine/schedule/policy.h"

namespace p2p::engine {

/// The items of a lane that wait for a channel, by their classes of priority. Of one class batches that came
/// back go first, then batches are cut from the others in turns, so that a short item does not wait for a
/// long one. A class that has waited for `kPatience` behind higher ones is owed a batch. Items of paced
/// requests rest until they are due. Not thread-safe.
class ItemQueue {
 public:
  using Clock = WorkItem::Clock;

  static constexpr std::chrono::milliseconds kPatience{50};

  void push(WorkItem item) { waiting(item).items.push_back(std::move(item)); }
  void push_all(std::deque<WorkItem> items);

  /// A batch that was cut before. What was owed to its class is so again.
  void put_back(WorkItem item);

  bool empty() const { return size() == 0; }
  std::size_t size() const;

  /// `first` goes by the clock: several classes wait, or something rests. Else its argument may be zero.
  bool needs_clock() const;

  /// The class whose turn it is; nothing if no item is due. Whether it is owed one behind a higher class.
  struct Choice {
    Priority priority = Priority::kNormal;
    bool owed = false;
  };
  std::optional<Choice> first(Clock::time_point now);

  /// The next batch of a class, of `limits`, or less of its last item so that `channels` share it. Aborted
  /// items are dropped on the way; nothing if none is left. `now` as given to `first`.
  struct Cut {
    BatchLimits limits;
    std::size_t channels = 1;
    Clock::time_point now{};
  };
  std::optional<WorkItem> take(Priority priority, const Policy& policy, Cut cut, PostUnlockActions& actions);

  /// What is cut up next, or was before it came back. Something of the class waits.
  const WorkItem& next(Priority priority) const;

  /// So many bytes that a batch of the class would have, of `most` at most. Something of it waits.
  std::uint64_t next_bytes(Priority priority, std::uint64_t most) const;

  /// So many bytes wait at least; also said of very many short items, without a look at all.
  bool holds(std::uint64_t bytes) const;

  /// When the next resting item is due; nothing: none rests.
  std::optional<Clock::time_point> next_due() const;

  void drop_aborted(PostUnlockActions& actions);
  void refuse_all(const Refusal& refusal, PostUnlockActions& actions);

 private:
  static constexpr std::size_t kClasses = 3;

  struct Waiting {
    bool empty() const { return items.empty() && returned.empty(); }

    std::deque<WorkItem> items;  // not cut up yet
    std::deque<WorkItem> returned;
    Clock::time_point since{};  // when a higher one first went before; zero: none has
    bool granted = false;       // the last batch was owed
  };

  Waiting& waiting(const WorkItem& item);
  bool waits(std::size_t index) const { return classes_[index] && !classes_[index]->empty(); }
  void resume(Clock::time_point now);
  void rest(WorkItem item, std::uint64_t spent, Clock::time_point now);

  template <class Visitor>
  void for_each_list(Visitor&& visit);

  // By Priority. Made at the first use: most lanes never see more than one.
  std::array<std::unique_ptr<Waiting>, kClasses> classes_;
  std::vector<WorkItem> resting_;
};

}  // namespace p2p::engine
