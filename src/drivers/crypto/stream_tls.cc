// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/crypto/stream_tls.h"

#include <openssl/bio.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/io_vector.h"
#include "base/safe_copy.h"
#include "drivers/crypto/crypto.h"
#include "drivers/crypto/openssl.h"
#include "drivers/crypto/tls_context.h"

namespace p2p::crypto {
namespace {

/// What one call of the pipe moves at least if there is as much, either way: calls cost more than copies.
constexpr std::size_t kGather = std::size_t{128} << 10;
/// Half a core's second cache, with what is sealed: more, and the pipe finds it in memory.
constexpr std::size_t kRoom = kGather + RecordCipher::kMostRecord + 8 * RecordCipher::kAdded;

constexpr std::string_view kIdentity = "p2p stream";
constexpr std::string_view kSecretOfDialler = "CLIENT_TRAFFIC_SECRET_0 ";
constexpr std::string_view kSecretOfAcceptor = "SERVER_TRAFFIC_SECRET_0 ";

/// A KeyUpdate (RFC 8446, section 4.6.3); its last byte is 1 if the other side is to take a new key, too.
constexpr std::array<std::byte, 5> kKeyUpdate{std::byte{24}, std::byte{0}, std::byte{0}, std::byte{1},
                                              std::byte{0}};

StreamTls* stream_of(const SSL* ssl) { return static_cast<StreamTls*>(SSL_get_app_data(ssl)); }

int show_key(SSL* ssl, const EVP_MD* /*digest*/, const unsigned char** identity, size_t* identity_size,
             SSL_SESSION** session) {
  *session = session_of(ssl, stream_of(ssl)->key());
  if (*session == nullptr) return 0;
  *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *identity_size = kIdentity.size();
  return 1;
}

int find_key(SSL* ssl, const unsigned char* identity, size_t identity_size, SSL_SESSION** session) {
  *session = nullptr;
  const std::string_view named(reinterpret_cast<const char*>(identity), identity_size);
  if (named != kIdentity) return 1;
  *session = session_of(ssl, stream_of(ssl)->key());
  return *session != nullptr ? 1 : 0;
}

/// The secret at the end of such a line.
bool parse_secret(std::string_view line, RecordCipher::Secret& secret) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (line.size() < 2 * secret.size()) return false;
  line.remove_prefix(line.size() - 2 * secret.size());
  for (std::size_t i = 0; i != secret.size(); ++i) {
    const std::size_t high = kDigits.find(line[2 * i] | 0x20);
    const std::size_t low = kDigits.find(line[2 * i + 1] | 0x20);
    if (high == std::string_view::npos || low == std::string_view::npos) return false;
    secret[i] = static_cast<std::byte>(high << 4 | low);
  }
  return true;
}

/// Where in a list of memory one has got to.
struct Place {
  std::span<const iovec> pieces;
  std::size_t within = 0;

  void go(std::size_t bytes) {
    within += bytes;
    for (; !pieces.empty() && within >= pieces.front().iov_len; pieces = pieces.subspan(1))
      within -= pieces.front().iov_len;
  }
};

/// One for the process.
Result<SSL_CTX*> context() {
  static const Result<SSL_CTX*> made = make_tls_context().map([](SSL_CTX* context) {
    SSL_CTX_set_psk_use_session_callback(context, show_key);
    SSL_CTX_set_psk_find_session_callback(context, find_key);
    // The one way to the secrets that OpenSSL offers: meant for logs, which these reach never.
    SSL_CTX_set_keylog_callback(context,
                                [](const SSL* ssl, const char* line) { stream_of(ssl)->learn_secret(line); });
    return context;
  });
  return made;
}

}  // namespace

/// Between OpenSSL and the pipe. OpenSSL's own for sockets would raise SIGPIPE.
struct StreamTls::Bio {
  static StreamTls& of(BIO* bio) { return *static_cast<StreamTls*>(BIO_get_data(bio)); }

  /// Never has OpenSSL wait, which would then insist on the same bytes again.
  static int write(BIO* bio, const char* data, int size) {
    StreamTls& tls = of(bio);
    const auto bytes = static_cast<std::size_t>(size);
    if (bytes > kRoom - tls.sealed_end_) return -1;
    std::memcpy(tls.sealed_.get() + tls.sealed_end_, data, bytes);
    tls.sealed_end_ += bytes;
    return size;
  }

  static int read(BIO* bio, char* data, int size) {
    BIO_clear_retry_flags(bio);
    StreamTls& tls = of(bio);
    if (tls.came_ == tls.came_end_ && !tls.drained_) {
      if (Status more = tls.refill(); !more) {
        tls.broken_ = std::move(more).error();
        return -1;
      }
    }
    const std::size_t got = std::min(static_cast<std::size_t>(size), tls.came_end_ - tls.came_);
    if (got == 0) {
      BIO_set_retry_read(bio);
      return -1;
    }
    std::memcpy(data, tls.arrived_.get() + tls.came_, got);
    tls.came_ += got;
    return static_cast<int>(got);
  }

  static long control(BIO* /*bio*/, int command, long /*number*/, void* /*data*/) {
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

  static BIO_METHOD* method() {
    static BIO_METHOD* const made = [] {
      BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "p2p pipe");
      if (method == nullptr) return method;
      BIO_meth_set_write(method, write);
      BIO_meth_set_read(method, read);
      BIO_meth_set_ctrl(method, control);
      return method;
    }();
    return made;
  }

  static BIO* open(StreamTls& tls) {
    BIO* bio = method() == nullptr ? nullptr : BIO_new(method());
    if (bio == nullptr) return nullptr;
    BIO_set_data(bio, &tls);
    BIO_set_init(bio, 1);
    return bio;
  }
};

StreamTls::StreamTls(const Key& key, Pipe& pipe, std::uint64_t records_of_a_key)
    : key_(key),
      pipe_(pipe),
      records_of_a_key_(records_of_a_key),
      // Not written before it is used: most streams of many move little.
      sealed_(new std::byte[kRoom]),
      arrived_(new std::byte[kRoom]) {}

StreamTls::~StreamTls() {
  SSL_free(ssl_);
  wipe(secrets_.dialler);
  wipe(secrets_.acceptor);
}

Result<std::unique_ptr<StreamTls>> StreamTls::start(Tls::Side side, const Key& key, Pipe& pipe,
                                                    std::uint64_t records_of_a_key) {
  std::unique_ptr<StreamTls> tls(new StreamTls(key, pipe, records_of_a_key));
  if (Status begun = tls->begin(side); !begun) return tl::unexpected(begun.error());
  return tls;
}

Status StreamTls::begin(Tls::Side side) {
  const auto shared = context();
  if (!shared) return tl::unexpected(shared.error());
  ERR_clear_error();
  ssl_ = SSL_new(*shared);
  BIO* bio = Bio::open(*this);
  if (ssl_ == nullptr || bio == nullptr) {
    BIO_free(bio);
    return fail(ErrorCode::kSystem, "start TLS of a stream: {}", openssl_error());
  }
  SSL_set_bio(ssl_, bio, bio);
  SSL_set_app_data(ssl_, this);
  if (side == Tls::Side::kDials) {
    SSL_set_connect_state(ssl_);
  } else {
    SSL_set_accept_state(ssl_);
  }
  return {};
}

Result<bool> StreamTls::shake_hands() {
  if (Status flushed = flush(); !flushed) return tl::unexpected(flushed.error());
  if (opens_ != nullptr) return true;
  ERR_clear_error();
  drained_ = false;
  const int done = SSL_do_handshake(ssl_);
  if (Status flushed = flush(); !flushed) return tl::unexpected(flushed.error());
  if (broken_) return tl::unexpected(*broken_);
  if (done != 1) {
    if (SSL_get_error(ssl_, done) == SSL_ERROR_WANT_READ) return false;
    return tl::unexpected(explain("TLS handshake of a stream"));
  }
  // There is no other way to get here, which is worth a look.
  if (SSL_session_reused(ssl_) != 1) {
    return fail(ErrorCode::kPermissionDenied, "TLS handshake of a stream: no key was shown");
  }
  if (Status keyed = take_over(); !keyed) return tl::unexpected(keyed.error());
  return true;
}

void StreamTls::learn_secret(std::string_view line) {
  if (line.starts_with(kSecretOfDialler)) secrets_.known += parse_secret(line, secrets_.dialler) ? 1 : 0;
  if (line.starts_with(kSecretOfAcceptor)) secrets_.known += parse_secret(line, secrets_.acceptor) ? 1 : 0;
}

/// From the handshake, with which OpenSSL's part ends: it takes no byte behind it from the pipe.
Status StreamTls::take_over() {
  const char* const cipher = SSL_CIPHER_standard_name(SSL_get_current_cipher(ssl_));
  if (secrets_.known != 2 || std::string_view(cipher) != kCipher) {
    return fail(ErrorCode::kSystem, "TLS of a stream: OpenSSL gave no keys for {}", kCipher);
  }
  const bool dials = SSL_is_server(ssl_) == 0;
  auto seals = RecordCipher::start(RecordCipher::Use::kSeals, dials ? secrets_.dialler : secrets_.acceptor);
  auto opens = RecordCipher::start(RecordCipher::Use::kOpens, dials ? secrets_.acceptor : secrets_.dialler);
  wipe(secrets_.dialler);
  wipe(secrets_.acceptor);
  if (!seals) return tl::unexpected(seals.error());
  if (!opens) return tl::unexpected(opens.error());
  seals_ = std::move(*seals);
  opens_ = std::move(*opens);
  SSL_free(std::exchange(ssl_, nullptr));
  return {};
}

Result<StreamTls::Moved> StreamTls::send(std::span<const iovec> pieces) {
  if (Status flushed = flush(); !flushed) return tl::unexpected(flushed.error());
  const std::size_t all = total_bytes(pieces);
  std::byte* const clear = copy_room().data();
  Place from{pieces};
  Moved moved;
  while (moved.bytes != all && !moved.faulted && kept() == 0) {
    while (moved.bytes != all && !moved.faulted && kept() < kGather) {
      const std::size_t most = std::min(RecordCipher::kMostClear, all - moved.bytes);
      // The copy is in the core's cache, and what is sealed nobody else can change meanwhile.
      const std::size_t bytes = copy_in(clear, from.pieces, most, from.within);
      moved.faulted = bytes != most;
      moved.bytes += bytes;
      from.go(bytes);
      if (bytes == 0) break;
      if (Status sealed = seal({clear, bytes}); !sealed) return tl::unexpected(sealed.error());
    }
    if (Status flushed = flush(); !flushed) return tl::unexpected(flushed.error());
  }
  return moved;
}

Status StreamTls::seal(ByteView clear) {
  if (seals_->records() >= records_of_a_key_ || new_key_wanted_) {
    if (Status said = append(RecordCipher::Type::kHandshake, kKeyUpdate); !said) return said;
    if (Status updated = seals_->update_key(); !updated) return updated;
    new_key_wanted_ = false;
  }
  return append(RecordCipher::Type::kData, clear);
}

Status StreamTls::append(RecordCipher::Type type, ByteView clear) {
  std::byte* const record = sealed_.get() + sealed_end_;
  sealed_end_ += clear.size() + RecordCipher::kAdded;
  return seals_->seal(type, clear, record);
}

Result<StreamTls::Moved> StreamTls::receive(std::span<const iovec> into) {
  Place place{into};
  std::size_t left = total_bytes(into);
  Moved moved;
  drained_ = false;
  while (left != 0) {
    const Result<ByteView> opened = next_clear(left);
    if (!opened) return tl::unexpected(opened.error());
    if (opened->empty()) break;
    if (!land(place.pieces, opened->data(), opened->size(), place.within)) moved.faulted = true;
    place.go(opened->size());
    moved.bytes += opened->size();
    left -= opened->size();
  }
  return moved;
}

Result<std::size_t> StreamTls::receive_into(std::span<std::byte> into) {
  std::size_t filled = 0;
  drained_ = false;
  while (filled != into.size()) {
    const Result<ByteView> opened = next_clear(into.size() - filled);
    if (!opened) return tl::unexpected(opened.error());
    if (opened->empty()) break;
    std::memcpy(into.data() + filled, opened->data(), opened->size());
    filled += opened->size();
  }
  return filled;
}

/// At most so many bytes that are proven to be the peer's, until the next call; none: no more have come.
Result<ByteView> StreamTls::next_clear(std::size_t most) {
  while (opened_.empty()) {
    const Result<std::span<std::byte>> record = next_record();
    if (!record) return tl::unexpected(record.error());
    if (record->empty()) return ByteView{};
    const auto opened = opens_->open(*record);
    if (!opened) return tl::unexpected(opened.error());
    if (opened->type == RecordCipher::Type::kData) {
      // No side sends any; a peer that sent nothing else would keep this thread for as long as it likes.
      if (opened->clear.empty()) return fail(ErrorCode::kProtocol, "TLS of a stream: a record without bytes");
      opened_ = opened->clear;
      key_updates_.count_record();
    } else if (Status heard = hear(*opened); !heard) {
      return tl::unexpected(heard.error());
    }
  }
  const ByteView some = opened_.first(std::min(most, opened_.size()));
  opened_ = opened_.subspan(some.size());
  return some;
}

/// What the peer's TLS says beside data: that it takes a new key, or that it is at an end.
Status StreamTls::hear(const RecordCipher::Opened& said) {
  if (said.type == RecordCipher::Type::kAlert) {
    return fail(ErrorCode::kPeerGone, "the peer has ended the stream's TLS");
  }
  const bool update = said.type == RecordCipher::Type::kHandshake && said.clear.size() == kKeyUpdate.size() &&
                      std::equal(kKeyUpdate.begin(), kKeyUpdate.end() - 1, said.clear.begin()) &&
                      said.clear.back() <= std::byte{1};
  if (!update) return fail(ErrorCode::kProtocol, "TLS of a stream: the peer says what has no place in one");
  if (said.clear.back() == std::byte{1}) new_key_wanted_ = true;
  key_updates_.count();
  if (Status few = key_updates_.check(); !few) return few;
  return opens_->update_key();
}

/// Empty: no whole one has come.
Result<std::span<std::byte>> StreamTls::next_record() {
  while (true) {
    const std::span<std::byte> came(arrived_.get() + came_, came_end_ - came_);
    if (came.size() >= RecordCipher::kHeadBytes) {
      const auto bytes = RecordCipher::record_bytes(came.first<RecordCipher::kHeadBytes>());
      if (!bytes) return tl::unexpected(bytes.error());
      if (came.size() >= *bytes) {
        came_ += *bytes;
        return came.first(*bytes);
      }
    }
    if (drained_) return std::span<std::byte>{};
    if (Status more = refill(); !more) return tl::unexpected(more.error());
  }
}

/// What was opened is used up by now: it may lie where this fills in.
Status StreamTls::refill() {
  const std::size_t rest = came_end_ - came_;
  std::memmove(arrived_.get(), arrived_.get() + came_, rest);
  came_ = 0;
  came_end_ = rest;
  const std::span<std::byte> room(arrived_.get() + rest, kRoom - rest);
  const auto came = pipe_.receive(room);
  if (!came) return tl::unexpected(came.error());
  came_end_ += *came;
  drained_ = *came < room.size();
  return {};
}

Status StreamTls::flush() {
  if (kept() == 0) return {};
  const auto sent = pipe_.send({sealed_.get() + sent_, kept()});
  if (!sent) return tl::unexpected(sent.error());
  sent_ += *sent;
  if (kept() == 0) sent_ = sealed_end_ = 0;
  return {};
}

Error StreamTls::explain(const char* attempted) {
  return {ErrorCode::kProtocol, fmt::format("{}: {}", attempted, openssl_error())};
}

}  // namespace p2p::crypto
