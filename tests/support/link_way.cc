// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "link_way.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>
#include <utility>

namespace p2p::testing {
namespace {

constexpr std::uint64_t kMillion = 1'000'000;

// One that is late comes so much later than it would have.
constexpr std::uint64_t kLeastLateUs = 200;
constexpr std::uint64_t kMostLateUs = 2000;

using std::chrono::microseconds;

}  // namespace

Result<LinkProfile> LinkProfile::parse(const std::string& words, const LinkProfile& before) {
  LinkProfile profile = before;
  const std::map<std::string, std::uint64_t*> fields{{"rate_mbit", &profile.rate_mbit},
                                                     {"delay_us", &profile.delay_us},
                                                     {"jitter_us", &profile.jitter_us},
                                                     {"loss_ppm", &profile.loss_ppm},
                                                     {"duplicate_ppm", &profile.duplicate_ppm},
                                                     {"late_ppm", &profile.late_ppm},
                                                     {"queue_us", &profile.queue_us}};
  std::istringstream all(words);
  for (std::string word; all >> word;) {
    const std::size_t equals = std::min(word.find('='), word.size() - 1);
    const auto field = fields.find(word.substr(0, equals));
    const char* const end = word.data() + word.size();
    if (field == fields.end() ||
        std::from_chars(word.data() + equals + 1, end, *field->second) != std::from_chars_result{end, {}}) {
      return tl::unexpected(
          Error{ErrorCode::kInvalidArgument, "read the profile of a link: '" + word + "' is not known"});
    }
  }
  if (profile.rate_mbit == 0) {
    return tl::unexpected(Error{ErrorCode::kInvalidArgument, "read the profile of a link: no rate"});
  }
  return profile;
}

bool LinkWay::chance(std::uint64_t ppm) { return chances_() % kMillion < ppm; }

// As many chances are drawn for each packet, whatever becomes of it: so one that is dropped for want of room,
// which depends on the clock, changes nothing for those after it.
void LinkWay::take(Packet packet, Time now) {
  ++counts_.taken;
  const bool lost = chance(profile_.loss_ppm);
  const bool doubled = chance(profile_.duplicate_ppm);
  const bool late = chance(profile_.late_ppm);
  const microseconds jitter(chances_() % (profile_.jitter_us + 1));
  const microseconds lateness(kLeastLateUs + chances_() % (kMostLateUs - kLeastLateUs));

  const Time turn = std::max(free_at_, now);
  if (turn - now > microseconds(profile_.queue_us)) {
    ++counts_.dropped;
    return;
  }
  free_at_ = turn + Time(packet.size() * 8 * 1000 / profile_.rate_mbit);
  if (lost) {
    ++counts_.lost;
    return;
  }
  const Time at = free_at_ + microseconds(profile_.delay_us) + jitter;
  if (doubled) {
    ++counts_.doubled;
    arrive(packet, at);
  }
  if (!late) return arrive(std::move(packet), at);
  ++counts_.late;
  late_.emplace(at + lateness, std::move(packet));
}

void LinkWay::arrive(Packet packet, Time at) {
  last_ = std::max(last_, at);
  in_order_.emplace_back(last_, std::move(packet));
}

std::optional<LinkWay::Time> LinkWay::next() const {
  std::optional<Time> first;
  if (!in_order_.empty()) first = in_order_.front().first;
  if (!late_.empty()) first = std::min(first.value_or(Time::max()), late_.begin()->first);
  return first;
}

std::optional<LinkWay::Packet> LinkWay::give(Time now) {
  const auto first = next();
  if (!first || *first > now) return std::nullopt;
  if (!late_.empty() && late_.begin()->first == *first) {
    return std::move(late_.extract(late_.begin()).mapped());
  }
  Packet packet = std::move(in_order_.front().second);
  in_order_.pop_front();
  return packet;
}

}  // namespace p2p::testing
