// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/crypto/credentials.h"

#include <openssl/ssl.h>

#include <array>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "drivers/crypto/crypto.h"
#include "drivers/crypto/openssl.h"
#include "drivers/crypto/tls.h"

namespace p2p::crypto {
namespace {

constexpr const char* kCipher = "TLS_AES_128_GCM_SHA256";
constexpr std::array<unsigned char, 2> kCipherId{0x13, 0x01};

/// What a key is called in TLS, where a name has at least one byte.
constexpr std::string_view kIdentityPrefix = "p2p:";

constexpr std::string_view kSecretLabel = "p2p key of TLS";

constexpr std::size_t kMostCertificateBytes = std::size_t{16} << 10;

/// Marks sessions as ours, which OpenSSL demands of those that are as if resumed.
const std::array<unsigned char, 3> kContext{'p', '2', 'p'};

Tls* tls_of(SSL* ssl) { return static_cast<Tls*>(SSL_get_app_data(ssl)); }

/// A session as if resumed, which is how TLS 1.3 takes keys from outside.
SSL_SESSION* session_of(SSL* ssl, const NamedKey& key) {
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipherId.data());
  const auto* secret = reinterpret_cast<const unsigned char*>(key.secret.data());
  if (session != nullptr && cipher != nullptr &&
      SSL_SESSION_set1_master_key(session, secret, key.secret.size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
      SSL_SESSION_set1_id_context(session, kContext.data(), kContext.size()) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

int show_key(SSL* ssl, const EVP_MD* /*digest*/, const unsigned char** identity, size_t* identity_size,
             SSL_SESSION** session) {
  const NamedKey* key = tls_of(ssl)->first_key();
  *session = session_of(ssl, *key);
  if (*session == nullptr) return 0;
  *identity = reinterpret_cast<const unsigned char*>(key->name.data());
  *identity_size = key->name.size();
  return 1;
}

int find_key(SSL* ssl, const unsigned char* identity, size_t identity_size, SSL_SESSION** session) {
  *session = nullptr;
  const NamedKey* key = tls_of(ssl)->find_key({reinterpret_cast<const char*>(identity), identity_size});
  if (key != nullptr) *session = session_of(ssl, *key);
  return key == nullptr || *session != nullptr ? 1 : 0;
}

tl::unexpected<Error> failed(const std::string& what) {
  return fail(ErrorCode::kInvalidArgument, "{}: {}", what, openssl_error());
}

}  // namespace

Credentials::~Credentials() { SSL_CTX_free(context_); }

Status Credentials::make_context() {
  start_openssl();
  ERR_clear_error();
  context_ = SSL_CTX_new(TLS_method());
  const bool made = context_ != nullptr && SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION) == 1 &&
                    SSL_CTX_set_max_proto_version(context_, TLS1_3_VERSION) == 1 &&
                    SSL_CTX_set_ciphersuites(context_, kCipher) == 1 &&
                    SSL_CTX_set1_groups_list(context_, "X25519:P-256") == 1 &&
                    SSL_CTX_set_num_tickets(context_, 0) == 1 &&
                    SSL_CTX_set_session_id_context(context_, kContext.data(), kContext.size()) == 1;
  if (!made) return fail(ErrorCode::kSystem, "prepare TLS: {}", openssl_error());
  SSL_CTX_set_options(context_, SSL_OP_NO_TICKET);
  SSL_CTX_set_session_cache_mode(context_, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context_, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_max_cert_list(context_, kMostCertificateBytes);
  // Without an authority nobody's certificate is taken: a peer has a key, or nothing.
  SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return {};
}

Result<std::shared_ptr<const Credentials>> Credentials::of_keys(std::vector<NamedKey> keys) {
  if (keys.empty()) return fail(ErrorCode::kInvalidArgument, "prepare TLS by keys: there is none");
  std::shared_ptr<Credentials> made(new Credentials);
  if (Status status = made->make_context(); !status) return tl::unexpected(status.error());
  for (NamedKey& key : keys) {
    const Digest secret = hmac_sha256(key.secret, as_bytes(kSecretLabel));
    made->keys_.push_back({std::string(kIdentityPrefix) + key.name, Bytes(secret.begin(), secret.end())});
  }
  SSL_CTX_set_psk_use_session_callback(made->context_, show_key);
  SSL_CTX_set_psk_find_session_callback(made->context_, crypto::find_key);
  return made;
}

Result<std::shared_ptr<const Credentials>> Credentials::of_certificates(const CertificateFiles& files) {
  std::shared_ptr<Credentials> made(new Credentials);
  if (Status status = made->make_context(); !status) return tl::unexpected(status.error());
  SSL_CTX* context = made->context_;
  if (SSL_CTX_load_verify_locations(context, files.authority.c_str(), nullptr) != 1) {
    return failed("read the certificates of the authority in " + files.authority);
  }
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1) {
    return failed("read the certificate in " + files.certificate);
  }
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return failed("read the certificate's key in " + files.key);
  }
  if (SSL_CTX_check_private_key(context) != 1) {
    return failed(fmt::format("use {} with {}", files.key, files.certificate));
  }
  return made;
}

}  // namespace p2p::crypto
