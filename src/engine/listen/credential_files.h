// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "drivers/crypto/credentials.h"
#include "p2p/options.h"
#include "p2p/result.h"

namespace p2p::engine {

/// What the options say that this endpoint proves itself with. Files that change are read again for the next
/// session; sessions that are open stay. Thread-safe.
class CredentialFiles {
 public:
  /// Null where the options name none.
  static Result<std::unique_ptr<CredentialFiles>> open(const Options& options);

  /// As the files are now; if they make no sense, as they were when they did.
  std::shared_ptr<const crypto::Credentials> current();

 private:
  /// Tells one state of a file from the next.
  struct Stamp {
    std::uint64_t file = 0;
    std::int64_t size = 0;
    std::int64_t changed = 0;  // in nanoseconds
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };
  using Stamps = std::vector<Stamp>;

  CredentialFiles(std::string keys, crypto::CertificateFiles certificates)
      : keys_(std::move(keys)), certificates_(std::move(certificates)) {}

  Stamps look() const;
  Result<std::shared_ptr<const crypto::Credentials>> read() const;

  const std::string keys_;  // empty: by certificates
  const crypto::CertificateFiles certificates_;
  Mutex mutex_;
  Stamps seen_ P2P_GUARDED_BY(mutex_);
  std::shared_ptr<const crypto::Credentials> current_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
