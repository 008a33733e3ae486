// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "p2p/result.h"

namespace p2p::socket {

/// Where Unix sockets are found by their names: in this network namespace, or in a folder that processes of
/// several namespaces see. What is in the folder is of mode 0600, so that one user meets there.
class Place {
 public:
  /// This network namespace.
  Place() = default;

  /// The folder, or this network namespace if `folder` is empty. An error says what is wrong with the folder.
  static Result<Place> at(const std::string& folder);

  bool is_folder() const { return !folder_.empty(); }
  const std::string& folder() const { return folder_; }

  /// Two processes of one host that have the same number meet; kSystem where the system does not tell.
  Result<std::uint64_t> number() const;
  static bool is_folder(std::uint64_t number) { return (number & kFolder) != 0; }

  /// Where the file of a name is; only in a folder.
  std::string path_of(std::string_view name) const;

  /// Removes what processes left there that have ended: sockets that nobody holds any more. One that is a
  /// minute old or less may be about to be used and stays, and so does what cannot be asked.
  void sweep() const;

 private:
  static constexpr std::uint64_t kFolder = std::uint64_t{1} << 63;

  std::string folder_;
  std::uint64_t number_ = 0;
};

/// A socket's address under a name of at most 64 bytes.
struct LocalName {
  sockaddr_un address{};
  socklen_t size = 0;

  LocalName(const Place& place, std::string_view name);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

}  // namespace p2p::socket
