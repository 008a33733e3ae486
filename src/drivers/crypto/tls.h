// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "drivers/crypto/credentials.h"
#include "drivers/crypto/tls_context.h"
#include "p2p/result.h"

struct ssl_st;

namespace p2p::crypto {

/// One connection's TLS 1.3, without a socket: takes what came, gives what to send. One thread at a time.
///
/// A side that has no proof yet of the other one takes so many bytes of it and no more: a key's handshake has
/// a few hundred, certificates some thousand.
class Tls {
 public:
  enum class Side { kDials, kAccepts };
  using Secret = std::array<std::byte, 32>;

  static constexpr std::size_t kMostByKey = 2048;
  static constexpr std::size_t kMostByCertificate = std::size_t{32} << 10;

  /// Records after which this side takes a new key.
  static constexpr std::uint64_t kRecordsOfAKey = std::uint64_t{1} << 22;

  /// Whoever dials has its first words in `outgoing` at once.
  static Result<std::unique_ptr<Tls>> start(std::shared_ptr<const Credentials> credentials, Side side,
                                            std::uint64_t records_of_a_key = kRecordsOfAKey);

  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  /// What came; what it meant goes to the end of `clear`. An error is final: kPermissionDenied if one side
  /// does not believe the other, kProtocol for what the other side cannot have said. What is then in
  /// `outgoing` tells the other side.
  Status take(ByteView sealed, Bytes& clear);

  /// Once established: seals `clear`, to the end of `outgoing`.
  Status seal(ByteView clear);

  /// To be sent, in order. The caller takes bytes away once they are.
  Bytes& outgoing() { return outgoing_; }

  /// This side has answered who dials. Where there are keys, whoever that is has shown one of them.
  bool answered() const { return answered_; }

  /// Both sides have proven themselves, as far as this one can tell: a certificate may still be refused.
  bool established() const { return established_; }

  /// Once established: the name of the key, or the common name in the peer's certificate.
  const std::string& peer() const { return peer_; }

  /// Once established: the same on both sides if `context` is, and known to nobody else.
  Result<Secret> secret(std::string_view label, ByteView context) const;

  /// For the key that a peer names; null: there is none of that name. It is kept for errors.
  const NamedKey* find_key(std::string_view identity);
  /// The key that is shown to whom is dialled.
  const NamedKey* first_key();

 private:
  Tls(std::shared_ptr<const Credentials> credentials, Side side, std::uint64_t records_of_a_key);
  Status begin();
  Status check_first_words(ByteView sealed);
  Status shake_hands();
  Status learn_peer();
  Status read(Bytes& clear);
  std::size_t drain();
  Error explain(const char* attempted);
  std::optional<Error> refusal_by_key(int reason, int alert) const;
  std::optional<Error> refusal_by_certificate(int reason, int alert) const;

  const std::shared_ptr<const Credentials> credentials_;
  const Side side_;
  const std::uint64_t records_of_a_key_;
  ssl_st* ssl_ = nullptr;
  Bytes outgoing_;
  Bytes first_words_;  // of whoever dials, until their length is known
  bool measured_ = false;
  std::size_t taken_ = 0;  // before it is established
  bool answered_ = false;
  bool established_ = false;
  std::uint64_t records_ = 0;       // sealed with the key in use
  KeyUpdates key_updates_;          // of the peer
  std::optional<std::string> key_;  // the name of the one that was shown
  bool key_found_ = false;
  std::string peer_;
};

}  // namespace p2p::crypto
