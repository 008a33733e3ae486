// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/crypto/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "drivers/crypto/openssl.h"

namespace p2p::crypto {
namespace {

const unsigned char* raw(ByteView bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }

/// A key longer than SHA-256's block counts as its hash, as HMAC defines it; it also keeps OpenSSL's `int`
/// length in range.
Bytes fitting_key(ByteView key) {
  constexpr std::size_t kBlockBytes = 64;
  Bytes fitting(key.begin(), key.end());
  if (fitting.size() <= kBlockBytes) return fitting;
  fitting.resize(std::tuple_size_v<Digest>);
  unsigned int size = 0;
  if (EVP_Digest(key.data(), key.size(), reinterpret_cast<unsigned char*>(fitting.data()), &size,
                 EVP_sha256(), nullptr) != 1) {
    log(LogLevel::kError, "hash a {} byte key with SHA-256: {}", key.size(), openssl_error());
    std::abort();
  }
  return fitting;
}

}  // namespace

Digest hmac_sha256(ByteView key, ByteView message) {
  start_openssl();
  const Bytes fitting = fitting_key(key);
  // OpenSSL takes a null key for "the same as before".
  const unsigned char none = 0;
  Digest digest{};
  unsigned int size = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), fitting.empty() ? &none : raw(fitting), static_cast<int>(fitting.size()),
           raw(message), message.size(), reinterpret_cast<unsigned char*>(digest.data()), &size);
  // Going on with a known digest would accept a forger, so a broken OpenSSL ends the process.
  if (made == nullptr || size != digest.size()) {
    log(LogLevel::kError, "HMAC-SHA256 over {} bytes: {}", message.size(), openssl_error());
    std::abort();
  }
  return digest;
}

Status random_bytes(std::span<std::byte> out) {
  start_openssl();
  while (!out.empty()) {
    const std::size_t size = std::min<std::size_t>(out.size(), INT_MAX);
    if (RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(size)) != 1) {
      return fail(ErrorCode::kSystem, "draw {} random bytes: {}", size, openssl_error());
    }
    out = out.subspan(size);
  }
  return {};
}

void wipe(std::span<std::byte> secret) { OPENSSL_cleanse(secret.data(), secret.size()); }

bool equal(ByteView left, ByteView right) {
  if (left.size() != right.size()) return false;
  return left.empty() || CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace p2p::crypto
