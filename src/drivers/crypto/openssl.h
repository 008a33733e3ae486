// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <array>
#include <string>

namespace p2p::crypto {

/// Before all else. An endpoint that is still open when the process ends goes on meanwhile, so OpenSSL must
/// not take itself apart at exit; in vain where another library of the process has started it before.
inline void start_openssl() {
  static const int started = OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr);
  static_cast<void>(started);
}

/// The oldest error of this thread, in OpenSSL's words; the others are dropped.
inline std::string openssl_error() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "OpenSSL does not say why";
  if (const char* reason = ERR_reason_error_string(code)) return reason;
  std::array<char, 256> text{};
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

}  // namespace p2p::crypto
