// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "p2p/result.h"

struct ssl_ctx_st;
struct ssl_session_st;
struct ssl_st;

/// What all TLS of this library has in common.
namespace p2p::crypto {

/// The one cipher.
inline constexpr std::string_view kCipher = "TLS_AES_128_GCM_SHA256";

/// TLS 1.3 of one cipher, without tickets, which takes nobody's certificate yet. The caller frees it.
Result<ssl_ctx_st*> make_tls_context();

/// A session as if resumed, which is how TLS 1.3 takes keys from outside; null where memory is short. The
/// caller frees it.
ssl_session_st* session_of(ssl_st* ssl, ByteView key);

/// What a peer says within TLS beside data once that is established: new keys. Each costs this side more than
/// its 27 bytes are worth, and OpenSSL takes any number of them within one call. An honest peer has one for
/// millions of records (`Tls::kRecordsOfAKey`).
class KeyUpdates {
 public:
  static constexpr std::uint64_t kFree = 64;
  static constexpr std::uint64_t kRecordsForOne = 64;

  /// Counts from now on. `this` outlives `ssl`'s use.
  void watch(ssl_st* ssl);

  /// A new key of the peer's, where OpenSSL is past watching.
  void count() { ++updates_; }

  /// Data came.
  void count_record() { ++records_; }

  /// kProtocol if there were too many for the data that came.
  Status check() const;

 private:
  std::uint64_t records_ = 0;
  std::uint64_t updates_ = 0;
};

}  // namespace p2p::crypto
