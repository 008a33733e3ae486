// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/bytes.h"
#include "p2p/result.h"

struct evp_cipher_ctx_st;

namespace p2p::crypto {

/// Records of TLS 1.3 with TLS_AES_128_GCM_SHA256, of one direction (RFC 8446, sections 5 and 7.3), by the
/// secret that OpenSSL's handshake came to. OpenSSL's own calls for it copy each byte once more on the way.
/// One thread at a time.
class RecordCipher {
 public:
  enum class Use : std::uint8_t { kSeals, kOpens };
  enum class Type : std::uint8_t { kAlert = 21, kHandshake = 22, kData = 23 };
  using Secret = std::array<std::byte, 32>;

  static constexpr std::size_t kHeadBytes = 5;
  static constexpr std::size_t kTagBytes = 16;
  static constexpr std::size_t kMostClear = std::size_t{16} << 10;
  /// By how much a record is longer than what it holds.
  static constexpr std::size_t kAdded = kHeadBytes + 1 + kTagBytes;
  /// Of a peer that pads.
  static constexpr std::size_t kMostRecord = kHeadBytes + kMostClear + 256;

  static Result<std::unique_ptr<RecordCipher>> start(Use use, const Secret& secret);
  ~RecordCipher();
  RecordCipher(const RecordCipher&) = delete;
  RecordCipher& operator=(const RecordCipher&) = delete;

  /// A record of at most kMostClear bytes, which are read once; `record` has kAdded more.
  Status seal(Type type, ByteView clear, std::byte* record);

  /// How long the record is whose head this is; kProtocol if it cannot be one.
  static Result<std::size_t> record_bytes(std::span<const std::byte, kHeadBytes> head);

  struct Opened {
    Type type = Type::kData;
    ByteView clear;  ///< within the record
  };

  /// Opens a whole record in place. kProtocol: it is not what the peer has sealed, and what lies there now is
  /// to be used for nothing.
  Result<Opened> open(std::span<std::byte> record);

  /// Sealed or opened with the key in use.
  std::uint64_t records() const { return records_; }

  /// The next key of this direction, behind a KeyUpdate.
  Status update_key();

 private:
  RecordCipher(Use use, const Secret& secret) : use_(use), secret_(secret) {}
  Status take_key();
  std::array<std::byte, 12> next_nonce();

  const Use use_;
  Secret secret_;
  std::array<std::byte, 12> iv_{};
  std::uint64_t records_ = 0;  // with this key
  evp_cipher_ctx_st* cipher_ = nullptr;
};

}  // namespace p2p::crypto
