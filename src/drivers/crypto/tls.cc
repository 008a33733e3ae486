// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/crypto/tls.h"

#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <climits>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/peer_text.h"
#include "drivers/crypto/openssl.h"

namespace p2p::crypto {
namespace {

constexpr std::size_t kRecordBytes = std::size_t{16} << 10;

constexpr std::size_t kLongestName = 64;

/// A record's head, then the kind and the length of what whoever dials says first.
constexpr std::size_t kFirstWords = 9;
constexpr std::byte kHandshakeRecord{22};
constexpr std::byte kClientHello{1};

/// A name that a stranger may have chosen, fit for a log line.
std::string printable(std::string_view name) { return PeerText(name, kLongestName).text(); }

/// The name of a key out of what TLS calls it.
std::string key_name(std::string_view identity) {
  const std::size_t colon = identity.find(':');
  return printable(colon == std::string_view::npos ? identity : identity.substr(colon + 1));
}

std::string which_key(const std::string& name) {
  return name.empty() ? "key without a name" : fmt::format("key named '{}'", name);
}

/// The alert that the peer has sent, if that is what OpenSSL's reason says; else 0.
int alert_of(int reason) {
  return reason >= SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256 ? reason - SSL_AD_REASON_OFFSET
                                                                               : 0;
}

std::optional<std::string> common_name(X509* certificate) {
  X509_NAME* subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at < 0 || X509_NAME_get_index_by_NID(subject, NID_commonName, at) >= 0) return std::nullopt;
  unsigned char* text = nullptr;
  const int size = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
  if (size <= 0) return std::nullopt;
  std::string name(reinterpret_cast<const char*>(text), static_cast<std::size_t>(size));
  OPENSSL_free(text);
  if (name.size() > kLongestName || printable(name) != name) return std::nullopt;
  return name;
}

}  // namespace

Tls::Tls(std::shared_ptr<const Credentials> credentials, Side side, std::uint64_t records_of_a_key)
    : credentials_(std::move(credentials)), side_(side), records_of_a_key_(records_of_a_key) {}

Tls::~Tls() { SSL_free(ssl_); }

Result<std::unique_ptr<Tls>> Tls::start(std::shared_ptr<const Credentials> credentials, Side side,
                                        std::uint64_t records_of_a_key) {
  std::unique_ptr<Tls> tls(new Tls(std::move(credentials), side, records_of_a_key));
  if (side == Side::kAccepts) return tls;  // OpenSSL's part is made for whoever begins a handshake
  if (Status begun = tls->begin(); !begun) return tl::unexpected(begun.error());
  return tls;
}

Status Tls::begin() {
  ERR_clear_error();
  ssl_ = SSL_new(credentials_->context());
  BIO* in = BIO_new(BIO_s_mem());
  BIO* out = BIO_new(BIO_s_mem());
  if (ssl_ == nullptr || in == nullptr || out == nullptr) {
    BIO_free(in);
    BIO_free(out);
    return fail(ErrorCode::kSystem, "start TLS: {}", openssl_error());
  }
  SSL_set_bio(ssl_, in, out);
  SSL_set_app_data(ssl_, this);
  if (side_ == Side::kAccepts) {
    SSL_set_accept_state(ssl_);
    return {};
  }
  SSL_set_connect_state(ssl_);
  return shake_hands();
}

const NamedKey* Tls::first_key() {
  const NamedKey& key = credentials_->keys().front();
  key_ = key_name(key.name);
  return &key;
}

const NamedKey* Tls::find_key(std::string_view identity) {
  const auto& keys = credentials_->keys();
  const auto found = std::ranges::find(keys, identity, &NamedKey::name);
  key_ = key_name(identity);
  key_found_ = found != keys.end();
  return key_found_ ? &*found : nullptr;
}

Status Tls::take(ByteView sealed, Bytes& clear) {
  if (!established_) {
    taken_ += sealed.size();
    // What follows the end of the handshake in the same bytes counts, too, and is no secret of the peer's.
    const std::size_t most = credentials_->by_key() ? kMostByKey : kMostByCertificate;
    const bool first = side_ == Side::kAccepts && !measured_;
    if (first && taken_ > most) return fail(ErrorCode::kProtocol, "TLS: {} bytes came for a start", taken_);
    if (first) {
      if (Status good = check_first_words(sealed); !good || !measured_) return good;
      if (Status begun = begin(); !begun) return begun;
      sealed = first_words_;
    }
  }
  ERR_clear_error();
  while (!sealed.empty()) {
    const int some = static_cast<int>(std::min<std::size_t>(sealed.size(), INT_MAX));
    if (BIO_write(SSL_get_rbio(ssl_), sealed.data(), some) != some) {
      return fail(ErrorCode::kSystem, "TLS: keep {} bytes: {}", some, openssl_error());
    }
    sealed = sealed.subspan(static_cast<std::size_t>(some));
  }
  if (!established_) {
    if (Status good = shake_hands(); !good || !established_) return good;
    first_words_ = {};
  }
  return read(clear);
}

/// OpenSSL makes room for as long a first message as a stranger says that it sends. So that length is looked
/// at first.
Status Tls::check_first_words(ByteView sealed) {
  first_words_.insert(first_words_.end(), sealed.begin(), sealed.end());
  if (first_words_.size() < kFirstWords) return {};
  const auto at = [this](std::size_t i) { return std::to_integer<std::size_t>(first_words_[i]); };
  const std::size_t length = at(6) << 16 | at(7) << 8 | at(8);
  if (first_words_[0] != kHandshakeRecord || first_words_[5] != kClientHello || length > kMostByKey) {
    return fail(ErrorCode::kProtocol, "TLS: what came does not begin a handshake");
  }
  measured_ = true;
  return {};
}

Status Tls::shake_hands() {
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_);
  const bool waits = done != 1 && SSL_get_error(ssl_, done) == SSL_ERROR_WANT_READ;
  if (done != 1 && !waits) {
    Error error = explain("TLS handshake");
    drain();  // an alert
    return tl::unexpected(std::move(error));
  }
  answered_ = drain() != 0 || answered_;
  if (waits) {
    const std::size_t most = credentials_->by_key() ? kMostByKey : kMostByCertificate;
    if (taken_ > most) return fail(ErrorCode::kProtocol, "TLS handshake: {} bytes and no end", taken_);
    return {};
  }
  return learn_peer();
}

Status Tls::learn_peer() {
  established_ = true;
  key_updates_.watch(ssl_);
  if (credentials_->by_key()) {
    // There is no other way to get here, which is worth a look.
    if (SSL_session_reused(ssl_) != 1) return fail(ErrorCode::kPermissionDenied, "TLS: no key was shown");
    peer_ = key_.value_or("");
    return {};
  }
  X509* certificate = SSL_get0_peer_certificate(ssl_);
  const auto name = certificate != nullptr ? common_name(certificate) : std::nullopt;
  if (!name) {
    return fail(ErrorCode::kPermissionDenied,
                "the peer's certificate has no common name, or not one of up to {} printable letters",
                kLongestName);
  }
  peer_ = *name;
  return {};
}

Status Tls::read(Bytes& clear) {
  std::array<std::byte, kRecordBytes> record;  // filled by SSL_read_ex
  for (;;) {
    std::size_t got = 0;
    ERR_clear_error();
    const int done = SSL_read_ex(ssl_, record.data(), record.size(), &got);
    if (done == 1) {
      key_updates_.count_record();
      clear.insert(clear.end(), record.begin(), record.begin() + static_cast<std::ptrdiff_t>(got));
      continue;
    }
    const int why = SSL_get_error(ssl_, done);
    if (why == SSL_ERROR_WANT_READ) {
      drain();  // an answer to what asked for one
      return key_updates_.check();
    }
    Error error = why == SSL_ERROR_ZERO_RETURN
                      ? Error{ErrorCode::kProtocol, "TLS: the peer has ended it and not the session"}
                      : explain("TLS");
    drain();
    return tl::unexpected(std::move(error));
  }
}

Status Tls::seal(ByteView clear) {
  ERR_clear_error();
  if (records_ >= records_of_a_key_) {
    if (SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) != 1)
      return tl::unexpected(explain("TLS, new key"));
    records_ = 0;
  }
  std::size_t taken = 0;
  if (!clear.empty() && SSL_write_ex(ssl_, clear.data(), clear.size(), &taken) != 1) {
    return tl::unexpected(explain("TLS, seal"));
  }
  records_ += clear.size() / kRecordBytes + 1;
  drain();
  return {};
}

Result<Tls::Secret> Tls::secret(std::string_view label, ByteView context) const {
  Secret made{};
  ERR_clear_error();
  if (SSL_export_keying_material(
          ssl_, reinterpret_cast<unsigned char*>(made.data()), made.size(), label.data(), label.size(),
          reinterpret_cast<const unsigned char*>(context.data()), context.size(), 1) != 1) {
    return fail(ErrorCode::kSystem, "TLS, export a secret: {}", openssl_error());
  }
  return made;
}

/// How many bytes there were.
std::size_t Tls::drain() {
  BIO* out = SSL_get_wbio(ssl_);
  char* bytes = nullptr;
  const auto size = static_cast<std::size_t>(BIO_get_mem_data(out, &bytes));
  const auto* from = reinterpret_cast<const std::byte*>(bytes);
  outgoing_.insert(outgoing_.end(), from, from + size);
  (void)BIO_reset(out);
  return size;
}

Error Tls::explain(const char* attempted) {
  const int reason = ERR_GET_REASON(ERR_peek_error());
  const int alert = alert_of(reason);
  auto refusal =
      credentials_->by_key() ? refusal_by_key(reason, alert) : refusal_by_certificate(reason, alert);
  const std::string text = openssl_error();
  if (refusal) return std::move(*refusal);
  if (alert != 0) {
    return {ErrorCode::kProtocol,
            fmt::format("{}: the peer gave up: {}", attempted, SSL_alert_desc_string_long(alert))};
  }
  return {ErrorCode::kProtocol, fmt::format("{}: {}", attempted, text)};
}

std::optional<Error> Tls::refusal_by_key(int reason, int alert) const {
  if (established_) return std::nullopt;
  const auto denied = [](std::string message) {
    return Error{ErrorCode::kPermissionDenied, std::move(message)};
  };
  const std::string key = which_key(key_.value_or(""));
  if (side_ == Side::kAccepts) {
    if (reason == SSL_R_BINDER_DOES_NOT_VERIFY) {
      return denied(fmt::format("the two sides have different keys: the peer's {} is another one", key));
    }
    if (reason != SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM && reason != SSL_R_NO_SHARED_CIPHER)
      return std::nullopt;
    if (!key_) return denied("the peer shows no key");
    return denied(fmt::format("the peer shows a {}: this side has none such", key));
  }
  if (alert == SSL_AD_ILLEGAL_PARAMETER || alert == SSL_AD_DECRYPT_ERROR) {
    return denied(
        fmt::format("the peer refused: the two sides have different keys: its {} is another one", key));
  }
  if (alert == SSL_AD_HANDSHAKE_FAILURE || alert == SSL_AD_UNKNOWN_PSK_IDENTITY) {
    return denied(fmt::format("the peer refused: it has no {}", key));
  }
  return std::nullopt;
}

std::optional<Error> Tls::refusal_by_certificate(int reason, int alert) const {
  const auto denied = [](std::string message) {
    return Error{ErrorCode::kPermissionDenied, std::move(message)};
  };
  if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
    return denied(fmt::format("the peer's certificate is refused: {}",
                              X509_verify_cert_error_string(SSL_get_verify_result(ssl_))));
  }
  if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) return denied("the peer shows no certificate");
  switch (alert) {
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_CERTIFICATE_EXPIRED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_UNKNOWN_CA:
    case SSL_AD_CERTIFICATE_REQUIRED:
    case SSL_AD_DECRYPT_ERROR:
      return denied(
          fmt::format("the peer refused this side's certificate: {}", SSL_alert_desc_string_long(alert)));
    default: return std::nullopt;
  }
}

}  // namespace p2p::crypto
