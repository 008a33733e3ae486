// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/keepalive.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace p2p::engine {

Keepalive::Keepalive(Limits limits, Clock::time_point now)
    : limits_(limits), silence_(now, 2 * beat()), congestion_(now, 2 * beat()) {}

Result<std::chrono::milliseconds> Keepalive::judge(Clock::time_point now, const socket::Answers& answers) {
  using std::chrono::duration_cast, std::chrono::milliseconds;
  // At two beats, for what is awaited may have left only now, after a time in which nothing did.
  const bool doubtful =
      answers.unsure ? doubted_ : answers.awaited && answers.last >= limits_.machine - beat();
  if (std::exchange(doubted_, doubtful) && doubtful && answers.awaited && answers.last >= limits_.machine) {
    return fail(ErrorCode::kPeerGone, "its machine was not heard of for {} ms", answers.last.count());
  }
  const auto silence = silence_.tick(now);
  const auto congestion = congestion_.tick(now);
  if (silence >= limits_.peer) {
    return fail(ErrorCode::kPeerGone, "not heard of for {} ms, though its machine answers",
                limits_.peer.count());
  }
  if (congestion >= limits_.peer) {
    return fail(ErrorCode::kPeerGone, "took nothing that it was sent for {} ms", limits_.peer.count());
  }
  const auto still = std::max(silence, congestion);
  return still < limits_.machine ? milliseconds(0) : duration_cast<milliseconds>(still);
}

}  // namespace p2p::engine
