// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/runner_list.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "engine/schedule/caller_polling.h"

namespace p2p::engine {
namespace {

constexpr std::size_t kFew = 4;

}  // namespace

RunnerList::RunnerList(List list)
    : runners_(std::make_shared<List>(std::move(list))),
      several_rails_(std::any_of(begin(), end(), [this](const auto& runner) {
        return runner->rail() != runners_->front()->rail();
      })) {}

RunnerList RunnerList::with(std::shared_ptr<ChannelRunner> runner) const {
  List list = *runners_;
  const auto behind =
      std::upper_bound(list.begin(), list.end(), runner->number(),
                       [](std::uint32_t number, const auto& one) { return number < one->number(); });
  list.insert(behind, std::move(runner));
  return RunnerList(std::move(list));
}

RunnerList RunnerList::without(const ChannelRunner& runner) const {
  List list = *runners_;
  std::erase_if(list, [&](const auto& one) { return one.get() == &runner; });
  return RunnerList(std::move(list));
}

bool RunnerList::has(const ChannelRunner& runner) const {
  return std::any_of(begin(), end(), [&](const auto& one) { return one.get() == &runner; });
}

std::shared_ptr<ChannelRunner> RunnerList::message_runner() const {
  const auto found =
      std::find_if(begin(), end(), [](const auto& runner) { return runner->carries_messages(); });
  return found == end() ? nullptr : *found;
}

bool RunnerList::none_inflight() const {
  return std::none_of(begin(), end(), [](const auto& runner) { return runner->pace().has_inflight(); });
}

std::shared_ptr<ChannelRunner> RunnerList::idle() const {
  const auto found =
      std::find_if(begin(), end(), [](const auto& runner) { return !runner->pace().has_inflight(); });
  return found == end() ? nullptr : *found;
}

void RunnerList::signal(std::size_t count, std::size_t first) const {
  for (std::size_t i = 0; i < std::min(count, size()); ++i) at(first + i)->signal();
}

std::shared_ptr<ChannelRunner> RunnerList::start_here(const Policy& policy, std::size_t turn,
                                                      PostUnlockActions& actions) const {
  const std::size_t tried = policy.takes_turns ? 1 : size();
  for (std::size_t i = 0; i != tried; ++i) {
    const auto& runner = this->at(policy.takes_turns ? turn : i);
    if (runner->await_turn(actions) != Turn::kBusy) return runner;
  }
  return nullptr;
}

void RunnerList::assist(const std::shared_ptr<ChannelRunner>& one, bool all, const Policy& policy,
                        const std::function<bool()>& through,
                        ChannelRunner::Clock::time_point deadline) const {
  if (all && size() <= kFew) {
    engine::assist(*runners_, policy, through, deadline);
  } else if (one && has(*one)) {
    engine::assist({&one, 1}, policy, through, deadline);
  }
}

void RunnerList::give_up_stalled() const {
  std::vector<PathUse> uses;
  for (const auto& runner : *runners_) uses.push_back(runner->path_use());
  for (std::size_t i = 0; i != size(); ++i) {
    if (!uses[i].stalled()) continue;
    const auto time = uses[i].stalled_for;
    bool another_moves = false;
    for (std::size_t other = 0; other != size() && !another_moves; ++other) {
      if (at(other)->rail() == at(i)->rail() || uses[other].stalled_for.count() != 0) continue;
      another_moves = at(other)->heard_within(time);
      if (!another_moves) at(other)->tell([](Channel& channel) { return channel.probe(), Status(); });
    }
    if (!another_moves) continue;
    at(i)->tell([time](Channel& channel) -> Status {
      channel.give_up({ErrorCode::kPeerGone,
                       fmt::format("it stood still for {} ms while another rail moved", time.count())});
      return {};
    });
  }
}

std::size_t RunnerList::encrypted() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(*runners_, [](const auto& runner) { return runner->encrypted(); }));
}

std::string RunnerList::describe(std::size_t expected) const {
  std::map<std::string_view, std::string_view> rails;
  for (const auto& runner : *runners_) rails.emplace(runner->rail(), runner->description());
  std::string text = size() < expected ? fmt::format("{} of {} channels", size(), expected)
                                       : fmt::format("{} channel{}", size(), size() == 1 ? "" : "s");
  std::string_view separator = ": ";
  for (const auto& [rail, description] : rails) {
    text.append(std::exchange(separator, "; ")).append(description);
  }
  return text;
}

}  // namespace p2p::engine
