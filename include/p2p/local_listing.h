// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "p2p/api.h"
#include "p2p/endpoint.h"
#include "p2p/result.h"

namespace p2p {

/// Where an endpoint of this host can be reached, and the GPU that it is listed under.
struct LocalEndpoint {
  std::int32_t gpu = 0;
  std::string address;
  std::uint16_t port = 0;
};

/// Lists an endpoint for other processes of this user on this host, which find it by the index of a GPU (any
/// number that they agree on) without knowing its port. The list is a directory that only the
/// user can enter ($XDG_RUNTIME_DIR/uccl_p2p, else /tmp/uccl_p2p-UID) with one small file an endpoint. The
/// file goes with this object; what a killed process left is removed by whoever looks next. Movable, one
/// thread.
class P2P_API LocalListing {
 public:
  /// Several endpoints may have one index. kPermissionDenied if the directory is another user's, or open to
  /// others.
  static Result<LocalListing> announce(const Endpoint& endpoint, std::int32_t gpu);

  LocalListing() = default;
  LocalListing(LocalListing&& other) noexcept;
  LocalListing& operator=(LocalListing&& other) noexcept;
  ~LocalListing();

  /// Leaves the file alone from now on: after fork() it is the parent's.
  void forget() { path_.clear(); }

 private:
  std::string path_;
};

/// The newest endpoint of that index, those of other processes first; with `address`, at that address alone.
/// One that is not there yet is waited for; kNotFound once `timeout` is over.
P2P_API Result<LocalEndpoint> find_local(std::int32_t gpu, const std::optional<std::string>& address = {},
                                         std::chrono::nanoseconds timeout = std::chrono::nanoseconds{0});

}  // namespace p2p
