// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "rendezvous.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/process_id.h"
#include "errors.h"

namespace p2p::python {
namespace {

namespace fs = std::filesystem;

/// One line: format, process, its start, its PID namespace, birth (ns), GPU, port, address.
struct Entry {
  std::uint64_t process = 0;
  std::uint64_t started = 0;
  std::uint64_t pid_namespace = 0;
  std::int64_t born = 0;
  Identity identity;
};
constexpr int kFormat = 1;

std::string directory_path() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return std::string(runtime) + "/uccl_p2p";
  return "/tmp/uccl_p2p-" + std::to_string(geteuid());
}

Result<std::string> directory() {
  const std::string path = directory_path();
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return failure(ErrorCode::kSystem, "create " + path + ": " + std::strerror(errno));
  }
  struct stat status{};
  if (lstat(path.c_str(), &status) != 0) {
    return failure(ErrorCode::kSystem, "look at " + path + ": " + std::strerror(errno));
  }
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
    return failure(ErrorCode::kPermissionDenied,
                   path + " must be a directory of this user that nobody else can enter");
  }
  return path;
}

std::optional<Entry> read_entry(const fs::path& path) {
  std::ifstream file(path);
  Entry entry;
  int format = 0;
  file >> format >> entry.process >> entry.started >> entry.pid_namespace >> entry.born >>
      entry.identity.gpu >> entry.identity.port >> entry.identity.address;
  if (!file || format != kFormat || entry.identity.port == 0) return std::nullopt;
  return entry;
}

/// Newer than the other, but any other process before this one.
bool better(const Entry& entry, const Entry& than) {
  const auto own = static_cast<std::uint64_t>(getpid());
  const bool foreign = entry.process != own;
  if (foreign != (than.process != own)) return foreign;
  return entry.born > than.born;
}

/// Its process has gone: a PID alone may have been used again.
bool abandoned(const Entry& entry, std::uint64_t pid_namespace) {
  if (entry.pid_namespace != pid_namespace) return false;
  const auto started = start_of(entry.process);
  return started ? *started != entry.started : started.error().code == ErrorCode::kNotFound;
}

}  // namespace

Result<Rendezvous> Rendezvous::announce(const Identity& identity, Incarnation incarnation) {
  const Result<std::string> place = directory();
  if (!place) return tl::unexpected(place.error());
  // Without /proc nobody finds out whether it has gone.
  const auto process = this_process().value_or(ProcessId{.pid = static_cast<std::uint64_t>(getpid())});
  const std::string name = *place + "/gpu" + std::to_string(identity.gpu) + "-" +
                           std::to_string(process.pid) + "-" + std::to_string(incarnation);
  const std::string draft = *place + "/.draft-" + std::to_string(incarnation);
  std::ofstream file(draft, std::ios::trunc);
  file << kFormat << ' ' << process.pid << ' ' << process.started << ' ' << process.pid_namespace << ' '
       << std::chrono::system_clock::now().time_since_epoch().count() << ' ' << identity.gpu << ' '
       << identity.port << ' ' << identity.address << '\n';
  file.close();
  // Readers see all of it or nothing.
  if (!file || rename(draft.c_str(), name.c_str()) != 0) {
    return failure(ErrorCode::kSystem, "write " + name + ": " + std::strerror(errno));
  }
  Rendezvous announced;
  announced.path_ = name;
  return announced;
}

Rendezvous::Rendezvous(Rendezvous&& other) noexcept : path_(std::exchange(other.path_, {})) {}

Rendezvous& Rendezvous::operator=(Rendezvous&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

Rendezvous::~Rendezvous() {
  if (!path_.empty()) unlink(path_.c_str());
}

Result<Arrivals> Arrivals::watch() {
  const Result<std::string> place = directory();
  if (!place) return tl::unexpected(place.error());
  Arrivals arrivals;
  arrivals.fd_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  if (arrivals.fd_ < 0 || inotify_add_watch(arrivals.fd_, place->c_str(), IN_MOVED_TO) < 0) {
    return failure(ErrorCode::kSystem, "watch " + *place + ": " + std::strerror(errno));
  }
  return arrivals;
}

Arrivals::~Arrivals() {
  if (fd_ >= 0) ::close(fd_);
}

void Arrivals::wait(std::chrono::nanoseconds timeout) const {
  pollfd one{.fd = fd_, .events = POLLIN, .revents = 0};
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  if (poll(&one, 1, static_cast<int>(milliseconds)) <= 0) return;
  alignas(inotify_event) std::array<char, 4096> events;  // which ones does not matter
  while (read(fd_, events.data(), events.size()) > 0) {
  }
}

Result<Identity> find_local(std::int32_t gpu, const std::optional<std::string>& address) {
  const Result<std::string> place = directory();
  if (!place) return tl::unexpected(place.error());
  const std::uint64_t pid_namespace = namespace_id("pid").value_or(0);
  std::optional<Entry> best;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(*place, error)) {
    if (!file.path().filename().string().starts_with("gpu")) continue;
    const std::optional<Entry> entry = read_entry(file.path());
    if (!entry) continue;  // being removed
    if (abandoned(*entry, pid_namespace)) {
      unlink(file.path().c_str());
      continue;
    }
    if (entry->identity.gpu != gpu || (address && entry->identity.address != *address)) continue;
    if (!best || better(*entry, *best)) best = entry;
  }
  if (!best) {
    return failure(ErrorCode::kNotFound, "no process of this user on this host has an endpoint for GPU " +
                                             std::to_string(gpu) + (address ? " at " + *address : ""));
  }
  return best->identity;
}

}  // namespace p2p::python
