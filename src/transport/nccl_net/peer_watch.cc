// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/peer_watch.h"

#include <algorithm>

#include "base/error.h"

namespace p2p::nccl_net {
namespace {

// Plugins do not tell of bytes, only of whole messages: for so long after one, more are likely on their way.
constexpr std::chrono::microseconds kMaybeMoving{1000};
// Between looks for them the processor rests: who asks all the time holds up those that bring the bytes.
constexpr std::chrono::microseconds kRest{5};

// Bytes that come in a millisecond over a comm that is no better than none. Plugins do not tell of the parts
// of a message.
constexpr std::uint64_t kLeastRate = 256;

}  // namespace

bool PeerWatch::pause(Clock::time_point now) {
  if (now - moved_at_ >= kMaybeMoving) return false;
  paused_until_ = now + kRest;
  return true;
}

Status PeerWatch::check_awaited(Clock::time_point now, std::uint64_t bytes) {
  using namespace std::chrono;
  // Time counts in which this side looked and the other one was heard, which looks before it speaks.
  const bool counts = now - checked_at_ <= keepalive_ / 2 && now - heard_at_ <= keepalive_ / 2;
  const bool same = bytes != 0 && awaited_ == arrived_;
  if (!same) {
    still_ = {};
  } else if (counts) {
    still_ += now - checked_at_;
  }
  checked_at_ = now;
  awaited_ = bytes != 0 ? std::optional(arrived_) : std::nullopt;
  // A look may be late by a quarter of the keepalive time.
  if (still_ < keepalive_ * 3 / 4 + milliseconds(bytes / kLeastRate)) return {};
  return fail(ErrorCode::kPeerGone,
              "{} bytes that were announced have not come for {} ms though the other side lives", bytes,
              duration_cast<milliseconds>(still_).count());
}

Status PeerWatch::check(Clock::time_point now, const Load& load) {
  using namespace std::chrono;
  if (Status came = check_awaited(now, load.awaited); !came) return came;
  // Whoever did not look for so long cannot tell what there was to be heard.
  if (now - next_check_ > keepalive_ / 2) heard_at_ = std::max(heard_at_, now - keepalive_ / 2);
  // It may be slow; a host that is gone shows in the plugin's sockets and in the session, and ends both
  // sooner.
  if (now - heard_at_ > hung_) {
    return fail(ErrorCode::kPeerGone, "the other side has not been heard of for {} ms",
                duration_cast<milliseconds>(now - heard_at_).count());
  }
  // A chunk is small: if none moves for so long, the plugin has lost its connection without saying so.
  if (now - heard_at_ > keepalive_) moved_at_ = now;  // while it stands nothing can move
  const milliseconds patience = std::max<milliseconds>(10 * keepalive_, seconds(10));
  if (load.busy && now - moved_at_ > patience) {
    return fail(ErrorCode::kPeerGone, "nothing has moved for {} ms though the other side lives",
                duration_cast<milliseconds>(now - moved_at_).count());
  }
  next_check_ = now + keepalive_ / 4;
  polls_.set_alarm(next_check_);
  return {};
}

}  // namespace p2p::nccl_net
