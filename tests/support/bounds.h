// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace p2p::testing {

#if defined(P2P_ASAN) || defined(P2P_TSAN)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Workers of endpoints whose transfers share memory on purpose (0: the default): of bytes that two of them
/// copy at once the thread sanitizer tells, though it is the test that asked for it.
#if defined(P2P_TSAN)
inline constexpr unsigned kSharingWorkers = 1;
#else
inline constexpr unsigned kSharingWorkers = 0;
#endif

/// Bound on whatever must succeed: large, because a loaded machine is no failure; a test that meets it hangs.
inline constexpr std::chrono::seconds kLimit{kSanitized ? 60 : 30};

/// What an engine may take beyond the keepalive time to see that a peer is gone, on a loaded machine.
inline constexpr std::chrono::milliseconds kMargin{kSanitized ? 12000 : 3000};

/// The same where a machine may stand still more than once meanwhile.
inline constexpr std::chrono::milliseconds kWideMargin{kSanitized ? 12000 : 10000};

/// `full`, or fewer where a sanitizer makes each step slow.
constexpr int scaled(int full, int sanitized) { return kSanitized ? sanitized : full; }

}  // namespace p2p::testing
