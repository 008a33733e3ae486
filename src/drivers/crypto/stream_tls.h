// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "drivers/crypto/record_cipher.h"
#include "drivers/crypto/tls.h"
#include "drivers/crypto/tls_context.h"
#include "p2p/result.h"

struct bio_st;
struct ssl_st;

namespace p2p::crypto {

/// TLS 1.3 for much data, by a key that both ends have from elsewhere, over a pipe that does not block.
/// OpenSSL shakes hands; records are sealed and opened here, with one copy of each byte at either end, which
/// is made in the core's cache. One thread at a time.
class StreamTls {
 public:
  /// Moves what is sealed.
  class Pipe {
   public:
    virtual ~Pipe() = default;

    /// How many it took; 0: it has no room now.
    virtual Result<std::size_t> send(ByteView bytes) = 0;

    /// How many came; 0: none now. kPeerGone once it has ended.
    virtual Result<std::size_t> receive(std::span<std::byte> into) = 0;
  };

  using Key = std::array<std::byte, 32>;

  /// `pipe` outlives it.
  static Result<std::unique_ptr<StreamTls>> start(Tls::Side side, const Key& key, Pipe& pipe,
                                                  std::uint64_t records_of_a_key = Tls::kRecordsOfAKey);
  ~StreamTls();
  StreamTls(const StreamTls&) = delete;
  StreamTls& operator=(const StreamTls&) = delete;

  /// True once both ends have shown that they have the key; call again when something has come until then.
  Result<bool> shake_hands();

  struct Moved {
    std::size_t bytes = 0;
    bool faulted = false;  ///< met memory of the caller's that is bad
  };

  /// Seals and sends as long as the pipe takes it; answers how many bytes it needs no more. What found no
  /// room, some records at most, is kept and goes first with the next call. Ends in front of bad memory.
  Result<Moved> send(std::span<const iovec> pieces);
  std::size_t kept() const { return sealed_end_ - sent_; }

  /// Fills in as much as has come and is proven to be the peer's. Fewer bytes than there is room for: all
  /// that the pipe had was taken. What belongs into bad memory counts, and is lost.
  Result<Moved> receive(std::span<const iovec> into);

  /// The same into memory that is good.
  Result<std::size_t> receive_into(std::span<std::byte> into);

  const Key& key() const { return key_; }

  /// A line of OpenSSL's log of keys.
  void learn_secret(std::string_view line);

 private:
  struct Bio;

  StreamTls(const Key& key, Pipe& pipe, std::uint64_t records_of_a_key);
  Status begin(Tls::Side side);
  Status take_over();
  Status flush();
  Status seal(ByteView clear);
  Status append(RecordCipher::Type type, ByteView clear);
  Result<ByteView> next_clear(std::size_t most);
  Result<std::span<std::byte>> next_record();
  Status hear(const RecordCipher::Opened& said);
  Status refill();
  Error explain(const char* attempted);

  const Key key_;
  Pipe& pipe_;
  const std::uint64_t records_of_a_key_;
  bool new_key_wanted_ = false;  // by the peer
  ssl_st* ssl_ = nullptr;        // until both have shown the key
  struct {
    RecordCipher::Secret dialler{};
    RecordCipher::Secret acceptor{};
    int known = 0;
  } secrets_;  // until then, too
  std::unique_ptr<RecordCipher> seals_;
  std::unique_ptr<RecordCipher> opens_;
  KeyUpdates key_updates_;       // of the peer
  std::optional<Error> broken_;  // the pipe, during the handshake

  const std::unique_ptr<std::byte[]> sealed_;
  std::size_t sealed_end_ = 0;
  std::size_t sent_ = 0;
  const std::unique_ptr<std::byte[]> arrived_;
  std::size_t came_ = 0;  // what lies before is opened
  std::size_t came_end_ = 0;
  ByteView opened_;       // of the last record, not handed out yet
  bool drained_ = false;  // the pipe had no more in this call of `receive`
};

}  // namespace p2p::crypto
