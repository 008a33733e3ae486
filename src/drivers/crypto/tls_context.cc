// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/crypto/tls_context.h"

#include <openssl/ssl.h>

#include <array>
#include <cstddef>

#include "base/error.h"
#include "drivers/crypto/openssl.h"

namespace p2p::crypto {
namespace {

constexpr std::array<unsigned char, 2> kCipherId{0x13, 0x01};
constexpr std::size_t kMostCertificateBytes = std::size_t{16} << 10;

/// Marks sessions as ours, which OpenSSL demands of those that are as if resumed.
const std::array<unsigned char, 3> kContext{'p', '2', 'p'};

}  // namespace

Result<SSL_CTX*> make_tls_context() {
  start_openssl();
  ERR_clear_error();
  SSL_CTX* context = SSL_CTX_new(TLS_method());
  const bool made = context != nullptr && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
                    SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
                    SSL_CTX_set_ciphersuites(context, kCipher.data()) == 1 &&
                    SSL_CTX_set1_groups_list(context, "X25519:P-256") == 1 &&
                    SSL_CTX_set_num_tickets(context, 0) == 1 &&
                    SSL_CTX_set_session_id_context(context, kContext.data(), kContext.size()) == 1;
  if (!made) {
    SSL_CTX_free(context);
    return fail(ErrorCode::kSystem, "prepare TLS: {}", openssl_error());
  }
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_max_cert_list(context, kMostCertificateBytes);
  // Without an authority nobody's certificate is taken: a peer has a key, or nothing.
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return context;
}

SSL_SESSION* session_of(SSL* ssl, ByteView key) {
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipherId.data());
  const auto* secret = reinterpret_cast<const unsigned char*>(key.data());
  if (session != nullptr && cipher != nullptr &&
      SSL_SESSION_set1_master_key(session, secret, key.size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
      SSL_SESSION_set1_id_context(session, kContext.data(), kContext.size()) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

void KeyUpdates::watch(SSL* ssl) {
  SSL_set_msg_callback(ssl, [](int sent, int, int type, const void*, std::size_t, SSL*, void* self) {
    if (sent == 0 && type == SSL3_RT_HANDSHAKE) ++static_cast<KeyUpdates*>(self)->updates_;
  });
  SSL_set_msg_callback_arg(ssl, this);
}

Status KeyUpdates::check() const {
  if (updates_ <= kFree + records_ / kRecordsForOne) return {};
  return fail(ErrorCode::kProtocol, "TLS: the peer took {} new keys for {} records", updates_, records_);
}

}  // namespace p2p::crypto
