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

/// The key file or the certificates that the options name, read again when they change: the next handshake
/// uses the new ones, open sessions are not touched. Thread-safe.
class CredentialFiles {
 public:
  /// Null if the options name neither. kInvalidArgument for options that contradict each other; else the
  /// error of the file that cannot be read or is not valid.
  static Result<std::unique_ptr<CredentialFiles>> open(const Options& options);

  /// For the next handshake. Looks at the files with stat(2); when they have changed and cannot be used, the
  /// log says so and the last good ones stay in use.
  std::shared_ptr<const crypto::Credentials> current();

 private:
  /// One state of a file; another one means that it was changed or replaced.
  struct Stamp {
    std::uint64_t inode = 0;
    std::int64_t size = 0;     // bytes
    std::int64_t changed = 0;  // nanoseconds since 1970
    friend bool operator==(const Stamp&, const Stamp&) = default;
  };
  using Stamps = std::vector<Stamp>;

  CredentialFiles(std::string keys, crypto::CertificateFiles certificates)
      : keys_(std::move(keys)), certificates_(std::move(certificates)) {}

  Stamps look() const;
  Result<std::shared_ptr<const crypto::Credentials>> read() const;

  const std::string keys_;  // path of the key file; empty: certificates are used
  const crypto::CertificateFiles certificates_;
  Mutex mutex_;
  Stamps seen_ P2P_GUARDED_BY(mutex_);
  std::shared_ptr<const crypto::Credentials> current_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
