// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/peer_text.h"

/// Messages by which a session goes on over another connection when its own breaks:
/// src/engine/session/session_resume.h.
namespace p2p::wire {

using SessionToken = std::array<std::byte, 16>;

/// From the acceptor, once the session is open: by this token it may be gone on with. The connector answers
/// it. Both say which process they are, for those on the same machine. A boot of zeros: unknown.
struct Resumable {
  SessionToken token{};
  std::array<std::byte, 16> boot{};
  std::uint64_t pid_namespace = 0;
  std::uint64_t pid = 0;
  std::uint64_t started = 0;
  friend bool operator==(const Resumable&, const Resumable&) = default;
};

/// From the acceptor, after `Resumable`: where else its port is reached. Numeric addresses, at most
/// kMostOtherAddresses.
struct AlternateAddresses {
  struct One {
    PeerText address;
    std::uint16_t port = 0;
    friend bool operator==(const One&, const One&) = default;
  };
  std::vector<One> addresses;
  friend bool operator==(const AlternateAddresses&, const AlternateAddresses&) = default;
};

inline constexpr std::size_t kMostOtherAddresses = 16;

/// So many of your messages I have handled since the session began. Those of this file and heartbeats do not
/// count.
struct CumulativeAck {
  std::uint64_t messages = 0;
  friend bool operator==(const CumulativeAck&, const CumulativeAck&) = default;
};

/// First on a new connection, from who dialled: the session that it is for. Attempts of one session are
/// numbered. The proof is of the session's secret and of the rest, so that nobody but the peer makes a new
/// one.
struct Resume {
  SessionToken token{};
  std::uint32_t attempt = 0;
  std::array<std::byte, 32> nonce{};
  std::array<std::byte, 32> proof{};

  static constexpr std::size_t kFrameBytes = 4 + 2 + 16 + 4 + 32 + 32;
  friend bool operator==(const Resume&, const Resume&) = default;
};

/// What the port answers. If it knows the session, TLS follows where the session was within TLS.
struct ResumeAnswer {
  std::uint8_t known = 0;
  std::array<std::byte, 32> nonce{};
  friend bool operator==(const ResumeAnswer&, const ResumeAnswer&) = default;
};

/// From both, the connector first: this side is who it was, and has handled so many messages of the other.
/// Those after them come again.
struct Resumed {
  std::array<std::byte, 32> proof{};
  std::uint64_t messages = 0;
  friend bool operator==(const Resumed&, const Resumed&) = default;
};

}  // namespace p2p::wire
