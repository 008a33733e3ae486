// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/listen/credential_files.h"

#include <sys/stat.h>

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/listen/key_file.h"

namespace p2p::engine {

Result<std::unique_ptr<CredentialFiles>> CredentialFiles::open(const Options& options) {
  const bool any = !options.tls_ca.empty() || !options.tls_certificate.empty() || !options.tls_key.empty();
  const bool all = !options.tls_ca.empty() && !options.tls_certificate.empty() && !options.tls_key.empty();
  if (any && !options.key_file.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "make an endpoint: set UCCL_P2P_KEY_FILE or certificates, not both");
  }
  if (any && !all) {
    return fail(
        ErrorCode::kInvalidArgument,
        "make an endpoint: UCCL_P2P_TLS_CA, UCCL_P2P_TLS_CERTIFICATE and UCCL_P2P_TLS_KEY go together; "
        "only some are set");
  }
  if (!any && options.key_file.empty()) {
    if (options.tls != Encryption::kOff) {
      return fail(ErrorCode::kInvalidArgument,
                  "make an endpoint: UCCL_P2P_TLS takes peers that prove who they are: set "
                  "UCCL_P2P_KEY_FILE, or UCCL_P2P_TLS_CA, UCCL_P2P_TLS_CERTIFICATE and UCCL_P2P_TLS_KEY");
    }
    if (options.allow.empty()) return nullptr;
    return fail(
        ErrorCode::kInvalidArgument,
        "make an endpoint: UCCL_P2P_ALLOW names peers, which nobody can prove to be without a key file or "
        "certificates");
  }
  std::unique_ptr<CredentialFiles> files(
      new CredentialFiles(options.key_file, {options.tls_ca, options.tls_certificate, options.tls_key}));
  MutexLock lock(files->mutex_);
  files->seen_ = files->look();
  auto read = files->read();
  if (!read) return tl::unexpected(read.error());
  files->current_ = std::move(*read);
  return files;
}

std::shared_ptr<const crypto::Credentials> CredentialFiles::current() {
  MutexLock lock(mutex_);
  // The stamps are taken before the files are read: a change during the read is seen by the next call.
  if (Stamps now = look(); now != seen_) {
    seen_ = std::move(now);
    if (auto read = this->read()) {
      current_ = std::move(*read);
      log(LogLevel::kInfo, "{} has changed and is used from now on",
          keys_.empty() ? certificates_.certificate : keys_);
    } else {
      log(LogLevel::kWarning, "the keys or certificates read before stay in use: {}", read.error().message);
    }
  }
  return current_;
}

CredentialFiles::Stamps CredentialFiles::look() const {
  Stamps stamps;
  for (const std::string* path :
       {&keys_, &certificates_.authority, &certificates_.certificate, &certificates_.key}) {
    struct stat status{};
    if (path->empty() || ::stat(path->c_str(), &status) != 0) {
      stamps.emplace_back();
    } else {
      stamps.push_back({status.st_ino, status.st_size,
                        std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec});
    }
  }
  return stamps;
}

Result<std::shared_ptr<const crypto::Credentials>> CredentialFiles::read() const {
  if (!keys_.empty()) {
    return read_key_file(keys_).and_then(
        [](auto keys) { return crypto::Credentials::of_keys(std::move(keys)); });
  }
  if (Status good = check_private(certificates_.key); !good) return tl::unexpected(good.error());
  return crypto::Credentials::of_certificates(certificates_);
}

}  // namespace p2p::engine
