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
#include "drivers/crypto/openssl.h"
#include "drivers/crypto/tls_context.h"

namespace p2p::crypto {
namespace {

constexpr std::size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
/// What one call of the pipe moves at least if there is as much, either way: calls cost more than copies.
constexpr std::size_t kGather = std::size_t{128} << 10;

constexpr std::string_view kIdentity = "p2p stream";

StreamTls* stream_of(SSL* ssl) { return static_cast<StreamTls*>(SSL_get_app_data(ssl)); }

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

/// Into the pieces from their byte `at` on. False if some are bad: the others have theirs.
bool land(std::span<const iovec> into, std::size_t at, ByteView bytes) {
  bool all = true;
  while (!bytes.empty()) {
    std::size_t step = copy_out(into, bytes.data(), bytes.size(), at);
    if (step != bytes.size()) {
      all = false;
      std::size_t end = 0;  // of the piece that is bad
      for (std::size_t i = 0; end <= at + step; ++i) end += into[i].iov_len;
      step = std::min(end - at, bytes.size());
    }
    at += step;
    bytes = bytes.subspan(step);
  }
  return all;
}

/// One for the process.
Result<SSL_CTX*> context() {
  static const Result<SSL_CTX*> made = make_tls_context().map([](SSL_CTX* context) {
    SSL_CTX_set_psk_use_session_callback(context, show_key);
    SSL_CTX_set_psk_find_session_callback(context, find_key);
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
    const auto* from = reinterpret_cast<const std::byte*>(data);
    of(bio).sealed_.insert(of(bio).sealed_.end(), from, from + size);
    return size;
  }

  static int read(BIO* bio, char* data, int size) {
    BIO_clear_retry_flags(bio);
    const auto got = of(bio).get({reinterpret_cast<std::byte*>(data), static_cast<std::size_t>(size)});
    if (!got) return -1;
    if (*got == 0) {
      BIO_set_retry_read(bio);
      return -1;
    }
    return static_cast<int>(*got);
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
    : key_(key), pipe_(pipe), records_of_a_key_(records_of_a_key), ahead_(kGather) {}

StreamTls::~StreamTls() { SSL_free(ssl_); }

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
  ERR_clear_error();
  drained_ = false;
  const int done = SSL_do_handshake(ssl_);
  if (Status flushed = flush(); !flushed) return tl::unexpected(flushed.error());
  if (broken_) return tl::unexpected(*broken_);
  if (done != 1) {
    if (SSL_get_error(ssl_, done) == SSL_ERROR_WANT_READ) return false;
    return tl::unexpected(explain("TLS handshake of a stream"));
  }
  key_updates_.watch(ssl_);
  // There is no other way to get here, which is worth a look.
  if (SSL_session_reused(ssl_) == 1) return true;
  return fail(ErrorCode::kPermissionDenied, "TLS handshake of a stream: no key was shown");
}

Result<StreamTls::Moved> StreamTls::send(std::span<const iovec> pieces) {
  if (Status flushed = flush(); !flushed) return tl::unexpected(flushed.error());
  const std::size_t all = total_bytes(pieces);
  const std::span<std::byte> room = copy_room();
  Moved moved;
  while (moved.bytes != all && !moved.faulted && kept() == 0) {
    while (moved.bytes != all && !moved.faulted && kept() < kGather) {
      const std::size_t most = std::min(room.size(), all - moved.bytes);
      const std::size_t bytes = copy_in(room.data(), pieces, most, moved.bytes);
      moved.faulted = bytes != most;
      moved.bytes += bytes;
      for (ByteView left = room.first(bytes); !left.empty();) {
        const std::size_t size = std::min(left.size(), kRecordBytes);
        if (Status sealed = seal(left.first(size)); !sealed) return tl::unexpected(sealed.error());
        left = left.subspan(size);
      }
    }
    if (Status flushed = flush(); !flushed) return tl::unexpected(flushed.error());
  }
  return moved;
}

Status StreamTls::seal(ByteView clear) {
  ERR_clear_error();
  if (++records_ > records_of_a_key_) {
    if (SSL_key_update(ssl_, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) {
      return tl::unexpected(explain("TLS of a stream, new key"));
    }
    records_ = 1;
  }
  std::size_t taken = 0;
  const int done = SSL_write_ex(ssl_, clear.data(), clear.size(), &taken);
  if (done != 1) return tl::unexpected(explain("TLS of a stream, seal"));
  return {};
}

Result<StreamTls::Moved> StreamTls::receive(std::span<const iovec> into) {
  const std::size_t all = total_bytes(into);
  const std::span<std::byte> room = copy_room();
  Moved moved;
  drained_ = false;
  while (moved.bytes != all) {
    const std::size_t most = std::min(room.size(), all - moved.bytes);
    const auto got = open(room.first(most));
    if (!got) return tl::unexpected(got.error());
    if (!land(into, moved.bytes, room.first(*got))) moved.faulted = true;
    moved.bytes += *got;
    if (*got != most) break;
  }
  return moved;
}

Result<std::size_t> StreamTls::receive_into(std::span<std::byte> into) {
  drained_ = false;
  return open(into);
}

Result<std::size_t> StreamTls::open(std::span<std::byte> into) {
  std::size_t filled = 0;
  while (filled != into.size()) {
    std::size_t got = 0;
    ERR_clear_error();
    const int done = SSL_read_ex(ssl_, into.data() + filled, into.size() - filled, &got);
    filled += got;
    if (done == 1) {
      key_updates_.count_record();
      continue;
    }
    if (broken_) return tl::unexpected(*broken_);
    const int why = SSL_get_error(ssl_, done);
    if (why == SSL_ERROR_WANT_READ) return filled;
    if (why != SSL_ERROR_ZERO_RETURN) return tl::unexpected(explain("TLS of a stream"));
    return fail(ErrorCode::kPeerGone, "the peer has ended the stream's TLS");
  }
  return filled;
}

Status StreamTls::flush() {
  if (kept() == 0) return {};
  const auto sent = pipe_.send(ByteView(sealed_).subspan(sent_));
  if (!sent) return tl::unexpected(sent.error());
  sent_ += *sent;
  if (kept() != 0) return {};
  sealed_.clear();
  sent_ = 0;
  return {};
}

/// OpenSSL asks for a record's head, then for the rest: what lies behind comes along, for a call less each.
std::optional<std::size_t> StreamTls::get(std::span<std::byte> into) {
  if (Status few = key_updates_.check(); !few) {
    broken_ = std::move(few).error();
    return std::nullopt;
  }
  if (ahead_begin_ == ahead_end_) {
    if (drained_) return 0;
    const auto came = pipe_.receive(into, ahead_);
    if (!came) {
      broken_ = came.error();
      return std::nullopt;
    }
    drained_ = *came < into.size() + ahead_.size();
    const std::size_t got = std::min(*came, into.size());
    ahead_begin_ = 0;
    ahead_end_ = *came - got;
    return got;
  }
  const std::size_t got = std::min(into.size(), ahead_end_ - ahead_begin_);
  std::memcpy(into.data(), ahead_.data() + ahead_begin_, got);
  ahead_begin_ += got;
  return got;
}

Error StreamTls::explain(const char* attempted) {
  return {ErrorCode::kProtocol, fmt::format("{}: {}", attempted, openssl_error())};
}

}  // namespace p2p::crypto
