// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "samples.h"

namespace p2p::weights {

namespace {

// Places in `families`.
enum Family : std::size_t { kBytes, kHeld, kReceived, kGiven, kCopies, kFrom, kWaiting, kWaited };

}  // namespace

void Account::wait_for(const std::string& whom, Clock::time_point now) {
  if (!waits_for.empty()) waited += now - since;
  waits_for = whom;
  since = now;
}

std::vector<MetricFamily> Samples::families() {
  const auto counter = MetricKind::kCounter;
  const auto gauge = MetricKind::kGauge;
  return {
      {"p2p_weights_bytes",
       "Bytes of a version of weights, as this member publishes or wants it.",
       gauge,
       {"version", "role"}},
      {"p2p_weights_held_bytes",
       "Of those, bytes that are here and have the right digest.",
       gauge,
       {"version"}},
      {"p2p_weights_received_bytes",
       "Bytes that have come, by the place of the member that gave them.",
       counter,
       {"version", "from"}},
      {"p2p_weights_given_bytes", "Bytes that others have taken from here.", counter, {"version"}},
      {"p2p_weights_copies", "Subscribers that have all of the version.", gauge, {"version"}},
      {"p2p_weights_source", "1 for the member from which bytes are taken now.", gauge, {"version", "from"}},
      {"p2p_weights_waiting",
       "1 while nothing is under way: what this member waits for.",
       gauge,
       {"version", "on"}},
      {"p2p_weights_waited_seconds",
       "Time in which something lacked and nothing was under way.",
       counter,
       {"version"}},
  };
}

void Samples::published(std::uint64_t version, std::uint64_t bytes, std::size_t copies, std::uint64_t given) {
  const std::string name = std::to_string(version);
  samples_.push_back({kBytes, {name, "publisher"}, static_cast<double>(bytes)});
  samples_.push_back({kHeld, {name}, static_cast<double>(bytes)});
  samples_.push_back({kGiven, {name}, static_cast<double>(given)});
  samples_.push_back({kCopies, {name}, static_cast<double>(copies)});
}

void Samples::subscribed(std::uint64_t version, std::uint64_t bytes, std::uint64_t held,
                         const Account& account) {
  const std::string name = std::to_string(version);
  samples_.push_back({kBytes, {name, "subscriber"}, static_cast<double>(bytes)});
  samples_.push_back({kHeld, {name}, static_cast<double>(held)});
  samples_.push_back({kGiven, {name}, static_cast<double>(account.given)});
  samples_.push_back({kWaited, {name}, std::chrono::duration<double>(account.waited).count()});
  for (const auto& [place, count] : account.received) {
    samples_.push_back({kReceived, {name, place}, static_cast<double>(count)});
  }
}

void Samples::takes(std::uint64_t version, const std::string& from) {
  samples_.push_back({kFrom, {std::to_string(version), from}, 1});
}

void Samples::waits(std::uint64_t version, const std::string& on) {
  samples_.push_back({kWaiting, {std::to_string(version), on}, 1});
}

}  // namespace p2p::weights
