// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

/// P2P_ASAN and P2P_TSAN: compiled with the address or the thread sanitizer, of which g++ and clang tell in
/// different ways.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define P2P_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define P2P_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define P2P_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define P2P_TSAN 1
#endif
