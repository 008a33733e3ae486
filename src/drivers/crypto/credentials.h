// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "p2p/result.h"

struct ssl_ctx_st;

namespace p2p::crypto {

/// A secret that both sides have. Several differ by their names; one may have none.
struct NamedKey {
  std::string name;
  Bytes secret;
};

/// Files in PEM: who vouches for peers; who this side is, its own certificate first; what it proves that
/// with.
struct CertificateFiles {
  std::string authority;
  std::string certificate;
  std::string key;
};

/// What this side proves itself with by TLS 1.3, and whom it believes. Never changes; sessions share it. Any
/// thread.
class Credentials {
 public:
  /// Whoever accepts takes any of the keys, whoever dials shows the first.
  static Result<std::shared_ptr<const Credentials>> of_keys(std::vector<NamedKey> keys);

  /// Each side shows its certificate, and takes those that the authority has signed.
  static Result<std::shared_ptr<const Credentials>> of_certificates(const CertificateFiles& files);

  ~Credentials();
  Credentials(const Credentials&) = delete;
  Credentials& operator=(const Credentials&) = delete;

  bool by_key() const { return !keys_.empty(); }

  /// For `Tls` alone.
  ssl_ctx_st* context() const { return context_; }
  const std::vector<NamedKey>& keys() const { return keys_; }

 private:
  Credentials() = default;
  Status make_context();

  ssl_ctx_st* context_ = nullptr;
  std::vector<NamedKey> keys_;  // secrets of 32 bytes, made of those that were given
};

}  // namespace p2p::crypto
