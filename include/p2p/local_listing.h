// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
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

  friend bool operator==(const LocalEndpoint&, const LocalEndpoint&) = default;
};

/// Lists an endpoint for other processes of this user on this host, which find it by the index of a GPU (any
/// number that they agree on) without knowing its port. The list is a directory that only the
/// user can enter ($XDG_RUNTIME_DIR/uccl_p2p, else /tmp/uccl_p2p-UID), or the folder of Options::socket_dir
/// for processes of several containers, with one small file an endpoint, locked by flock. The file goes with
/// this object; what a killed process left, of another container too, has no lock and is removed by whoever
/// looks next. Movable, one thread.
class P2P_API LocalListing {
 public:
  /// Several endpoints may have one index. `folder` is Options::socket_dir. kPermissionDenied if the
  /// directory without one is another user's, or open to others.
  static Result<LocalListing> announce(const Endpoint& endpoint, std::int32_t gpu,
                                       const std::string& folder = {});

  LocalListing();
  LocalListing(LocalListing&& other) noexcept;
  LocalListing& operator=(LocalListing&& other) noexcept;
  ~LocalListing();

 private:
  struct File;
  std::unique_ptr<File> file_;
};

/// The newest endpoint of that index, those of other processes first; with `address`, at that address alone.
/// None of `except`: those that were found before and could not be reached, as in another network namespace.
/// One that is not there yet is waited for; kNotFound once `timeout` is over. `folder` is that of `announce`:
/// what other users leave there is not looked at.
P2P_API Result<LocalEndpoint> find_local(std::int32_t gpu, const std::optional<std::string>& address = {},
                                         std::chrono::nanoseconds timeout = std::chrono::nanoseconds{0},
                                         std::span<const LocalEndpoint> except = {},
                                         const std::string& folder = {});

}  // namespace p2p
