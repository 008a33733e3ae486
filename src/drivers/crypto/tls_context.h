// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/bytes.h"
#include "p2p/result.h"

struct ssl_ctx_st;
struct ssl_session_st;
struct ssl_st;

/// What all TLS of this library has in common.
namespace p2p::crypto {

/// TLS 1.3 of one cipher, without tickets, which takes nobody's certificate yet. The caller frees it.
Result<ssl_ctx_st*> make_tls_context();

/// A session as if resumed, which is how TLS 1.3 takes keys from outside; null where memory is short. The
/// caller frees it.
ssl_session_st* session_of(ssl_st* ssl, ByteView key);

}  // namespace p2p::crypto
