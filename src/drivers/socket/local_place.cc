// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/local_place.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/process_id.h"
#include "base/unique_fd.h"

namespace p2p::socket {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxName = 45;  // in a folder: "p2p-cuda-ipc-" and 32 digits
constexpr std::size_t kMaxAbstractName = 64;
constexpr std::size_t kMaxFolder = 60;
static_assert(kMaxFolder + 1 + kMaxName < sizeof(sockaddr_un::sun_path));

// Of all names of sockets of this library.
constexpr std::string_view kPrefix = "p2p-";

constexpr std::chrono::seconds kYoung{60};

// A socket of another kind is never connected to whoever listens there, so that nobody is disturbed: the
// system says of which kind a living one is, and refuses for a dead one.
bool is_dead(const LocalName& name) {
  const UniqueFd probe = UniqueFd::of(::socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  return probe && ::connect(probe.get(), name.get(), name.size) != 0 && errno == ECONNREFUSED;
}

bool is_old_socket(const char* path) {
  struct stat status{};
  return ::lstat(path, &status) == 0 && S_ISSOCK(status.st_mode) &&
         std::time(nullptr) - status.st_mtime > kYoung.count();
}

}  // namespace

Result<Place> Place::at(const std::string& folder) {
  Place place;
  if (folder.empty()) return place;
  const std::string attempt = fmt::format("use the folder {} for sockets (UCCL_P2P_SOCKET_DIR)", folder);
  if (folder.front() != '/') return fail(ErrorCode::kInvalidArgument, "{}: not an absolute path", attempt);
  if (folder.size() > kMaxFolder) {
    return fail(ErrorCode::kInvalidArgument, "{}: a path of {} bytes, {} at most", attempt, folder.size(),
                kMaxFolder);
  }
  struct stat status{};
  if (::stat(folder.c_str(), &status) != 0) return tl::unexpected(system_error(attempt));
  if (!S_ISDIR(status.st_mode)) return fail(ErrorCode::kInvalidArgument, "{}: not a folder", attempt);
  if (::access(folder.c_str(), R_OK | W_OK | X_OK) != 0) return tl::unexpected(system_error(attempt));
  place.folder_ = folder;
  // Containers see one folder under other paths, as the same file of the same device.
  place.number_ =
      kFolder | (static_cast<std::uint64_t>(status.st_dev) * 0x9e3779b97f4a7c15U ^ status.st_ino) >> 1;
  return place;
}

Result<std::uint64_t> Place::number() const {
  if (is_folder()) return number_;
  return namespace_id("net");
}

std::string Place::path_of(std::string_view name) const { return fmt::format("{}/{}", folder_, name); }

void Place::sweep() const {
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder_, error)) {
    const std::string name = file.path().filename().string();
    if (!name.starts_with(kPrefix) || name.size() > kMaxName) continue;
    if (is_old_socket(file.path().c_str()) && is_dead(LocalName(*this, name))) ::unlink(file.path().c_str());
  }
}

// An abstract name goes with its socket: there is no file to clean up.
LocalName::LocalName(const Place& place, std::string_view name) {
  address.sun_family = AF_UNIX;
  char* out = nullptr;
  if (place.is_folder()) {
    out = std::ranges::copy(place.path_of(name.substr(0, kMaxName)), address.sun_path).out + 1;
  } else {
    out = std::ranges::copy(name.substr(0, kMaxAbstractName), address.sun_path + 1).out;
  }
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                static_cast<std::size_t>(out - address.sun_path));
}

}  // namespace p2p::socket
