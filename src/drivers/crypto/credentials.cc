// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/crypto/credentials.h"

#include <openssl/ssl.h>

#include <string_view>
#include <utility>

#include "base/error.h"
#include "drivers/crypto/crypto.h"
#include "drivers/crypto/openssl.h"
#include "drivers/crypto/tls.h"
#include "drivers/crypto/tls_context.h"

namespace p2p::crypto {
namespace {

/// What a key is called in TLS, where a name has at least one byte.
constexpr std::string_view kIdentityPrefix = "p2p:";

constexpr std::string_view kSecretLabel = "p2p key of TLS";

Tls* tls_of(SSL* ssl) { return static_cast<Tls*>(SSL_get_app_data(ssl)); }

int show_key(SSL* ssl, const EVP_MD* /*digest*/, const unsigned char** identity, size_t* identity_size,
             SSL_SESSION** session) {
  const NamedKey* key = tls_of(ssl)->first_key();
  *session = session_of(ssl, key->secret);
  if (*session == nullptr) return 0;
  *identity = reinterpret_cast<const unsigned char*>(key->name.data());
  *identity_size = key->name.size();
  return 1;
}

int find_key(SSL* ssl, const unsigned char* identity, size_t identity_size, SSL_SESSION** session) {
  *session = nullptr;
  const NamedKey* key = tls_of(ssl)->find_key({reinterpret_cast<const char*>(identity), identity_size});
  if (key != nullptr) *session = session_of(ssl, key->secret);
  return key == nullptr || *session != nullptr ? 1 : 0;
}

tl::unexpected<Error> failed(const std::string& what) {
  return fail(ErrorCode::kInvalidArgument, "{}: {}", what, openssl_error());
}

}  // namespace

Credentials::~Credentials() { SSL_CTX_free(context_); }

Status Credentials::make_context() {
  const auto context = make_tls_context();
  if (!context) return tl::unexpected(context.error());
  context_ = *context;
  SSL_CTX_set_mode(context_, SSL_MODE_RELEASE_BUFFERS);
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
