// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "identity.h"
#include "p2p/result.h"

namespace p2p::python {

/// How the processes of one user on one host find each other by GPU index: a directory that only the user can
/// enter ($XDG_RUNTIME_DIR/uccl_p2p, else /tmp/uccl_p2p-<uid>) with one small file an endpoint. The file goes
/// with the endpoint; what a killed process left is removed by whoever looks next.
class Rendezvous {
 public:
  /// Announces an endpoint. kPermissionDenied when the directory is another user's or open to others.
  static Result<Rendezvous> announce(const Identity& identity, Incarnation incarnation);

  Rendezvous() = default;
  Rendezvous(Rendezvous&& other) noexcept;
  Rendezvous& operator=(Rendezvous&& other) noexcept;
  ~Rendezvous();

  /// Leaves the file alone from now on (it belongs to the process that forked this one).
  void forget() { path_.clear(); }

 private:
  std::string path_;
};

/// The newest endpoint of this GPU index, another process's first; with `address`, of that host alone.
Result<Identity> find_local(std::int32_t gpu, const std::optional<std::string>& address = std::nullopt);

/// Tells when another endpoint may have announced itself.
class Arrivals {
 public:
  static Result<Arrivals> watch();

  Arrivals(Arrivals&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Arrivals& operator=(Arrivals&& other) noexcept { return std::swap(fd_, other.fd_), *this; }
  ~Arrivals();

  /// Returns at the latest after `timeout`.
  void wait(std::chrono::nanoseconds timeout) const;

 private:
  Arrivals() = default;
  int fd_ = -1;
};

}  // namespace p2p::python
