// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/crypto/record_cipher.h"

#include <openssl/evp.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "drivers/crypto/crypto.h"
#include "drivers/crypto/openssl.h"

namespace p2p::crypto {
namespace {

constexpr std::byte kOuterType{23};
constexpr std::byte kVersion{3};  // twice: 3.3, as in TLS 1.2
constexpr std::size_t kKeyBytes = 16;

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }

/// HKDF-Expand-Label of at most a hash's length, with an empty context.
Digest expand(ByteView secret, std::string_view label, std::size_t bytes) {
  Bytes info{std::byte{0}, static_cast<std::byte>(bytes), static_cast<std::byte>(6 + label.size())};
  for (const std::string_view part : {std::string_view("tls13 "), label}) {
    info.insert(info.end(), as_bytes(part).begin(), as_bytes(part).end());
  }
  info.push_back(std::byte{0});  // the context's length
  info.push_back(std::byte{1});  // the first block
  return hmac_sha256(secret, info);
}

std::array<std::byte, RecordCipher::kHeadBytes> head_of(std::size_t sealed) {
  return {kOuterType, kVersion, kVersion, static_cast<std::byte>(sealed >> 8),
          static_cast<std::byte>(sealed)};
}

}  // namespace

Result<std::unique_ptr<RecordCipher>> RecordCipher::start(Use use, const Secret& secret) {
  std::unique_ptr<RecordCipher> made(new RecordCipher(use, secret));
  if (Status keyed = made->take_key(); !keyed) return tl::unexpected(keyed.error());
  return made;
}

RecordCipher::~RecordCipher() {
  EVP_CIPHER_CTX_free(cipher_);  // which wipes it
  wipe(secret_);
  wipe(iv_);
}

Status RecordCipher::take_key() {
  ERR_clear_error();
  if (cipher_ == nullptr) cipher_ = EVP_CIPHER_CTX_new();
  Digest key = expand(secret_, "key", kKeyBytes);
  Digest iv = expand(secret_, "iv", iv_.size());
  std::copy_n(iv.begin(), iv_.size(), iv_.begin());
  const bool keyed =
      cipher_ != nullptr && EVP_CipherInit_ex(cipher_, EVP_aes_128_gcm(), nullptr, raw(key.data()), nullptr,
                                              use_ == Use::kSeals ? 1 : 0) == 1;
  wipe(key);
  wipe(iv);
  records_ = 0;
  if (!keyed) return fail(ErrorCode::kSystem, "TLS of a stream, take a key: {}", openssl_error());
  return {};
}

Status RecordCipher::update_key() {
  Digest next = expand(secret_, "traffic upd", secret_.size());
  secret_ = next;
  wipe(next);
  return take_key();
}

std::array<std::byte, 12> RecordCipher::next_nonce() {
  std::array<std::byte, 12> nonce = iv_;
  for (std::size_t i = 0; i != 8; ++i) nonce[11 - i] ^= static_cast<std::byte>(records_ >> (8 * i));
  ++records_;
  return nonce;
}

Status RecordCipher::seal(Type type, ByteView clear, std::byte* record) {
  const auto head = head_of(clear.size() + 1 + kTagBytes);
  std::ranges::copy(head, record);
  std::byte* const body = record + kHeadBytes;
  const auto nonce = next_nonce();
  const auto inner = static_cast<unsigned char>(type);
  const int size = static_cast<int>(clear.size());
  int done = 0;
  const bool sealed = EVP_EncryptInit_ex(cipher_, nullptr, nullptr, nullptr, raw(nonce.data())) == 1 &&
                      EVP_EncryptUpdate(cipher_, nullptr, &done, raw(head.data()), kHeadBytes) == 1 &&
                      EVP_EncryptUpdate(cipher_, raw(body), &done, raw(clear.data()), size) == 1 &&
                      EVP_EncryptUpdate(cipher_, raw(body) + size, &done, &inner, 1) == 1 &&
                      EVP_EncryptFinal_ex(cipher_, raw(body) + size + 1, &done) == 1 &&
                      EVP_CIPHER_CTX_ctrl(cipher_, EVP_CTRL_AEAD_GET_TAG, kTagBytes, body + size + 1) == 1;
  if (!sealed) return fail(ErrorCode::kSystem, "TLS of a stream, seal: {}", openssl_error());
  return {};
}

Result<std::size_t> RecordCipher::record_bytes(std::span<const std::byte, kHeadBytes> head) {
  const std::size_t sealed = static_cast<std::size_t>(head[3]) << 8 | static_cast<std::size_t>(head[4]);
  const bool good = head[0] == kOuterType && head[1] == kVersion && head[2] == kVersion &&
                    sealed > kTagBytes && kHeadBytes + sealed <= kMostRecord;
  if (!good) return fail(ErrorCode::kProtocol, "TLS of a stream: what came is no record");
  return kHeadBytes + sealed;
}

Result<RecordCipher::Opened> RecordCipher::open(std::span<std::byte> record) {
  std::byte* const body = record.data() + kHeadBytes;
  const std::size_t size = record.size() - kHeadBytes - kTagBytes;
  const auto nonce = next_nonce();
  int done = 0;
  const bool proven = EVP_DecryptInit_ex(cipher_, nullptr, nullptr, nullptr, raw(nonce.data())) == 1 &&
                      EVP_CIPHER_CTX_ctrl(cipher_, EVP_CTRL_AEAD_SET_TAG, kTagBytes, body + size) == 1 &&
                      EVP_DecryptUpdate(cipher_, nullptr, &done, raw(record.data()), kHeadBytes) == 1 &&
                      EVP_DecryptUpdate(cipher_, raw(body), &done, raw(body), static_cast<int>(size)) == 1 &&
                      EVP_DecryptFinal_ex(cipher_, raw(body) + size, &done) == 1;
  ERR_clear_error();
  if (!proven) return fail(ErrorCode::kProtocol, "TLS of a stream: bad record mac");
  std::size_t end = size;  // behind the padding, which is zeros, lies the type
  while (end != 0 && body[end - 1] == std::byte{0}) --end;
  if (end == 0) return fail(ErrorCode::kProtocol, "TLS of a stream: a record of no type");
  if (end - 1 > kMostClear) return fail(ErrorCode::kProtocol, "TLS of a stream: a record is too long");
  return Opened{.type = static_cast<Type>(body[end - 1]), .clear = {body, end - 1}};
}

}  // namespace p2p::crypto
