// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/local_listing.h"

#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/process_id.h"
#include "base/unique_fd.h"

namespace p2p {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// One line: format, process, its start, its PID namespace, birth (ns), GPU, port, address.
struct Entry {
  ProcessId process;
  std::int64_t born = 0;
  LocalEndpoint endpoint;
};
constexpr int kEntryFormat = 1;
constexpr const char* kEntryPrefix = "gpu";

std::string directory_path() {
  // The system's variable; no option of ours. NOLINTNEXTLINE(concurrency-mt-unsafe): nothing here calls
  // setenv
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return fmt::format("{}/uccl_p2p", runtime);
  return fmt::format("/tmp/uccl_p2p-{}", ::geteuid());
}

Result<std::string> directory() {
  std::string path = directory_path();
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return tl::unexpected(system_error(fmt::format("create {}", path)));
  }
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0)
    return tl::unexpected(system_error(fmt::format("look at {}", path)));
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 077) != 0) {
    return fail(ErrorCode::kPermissionDenied,
                "{} must be a directory of this user that nobody else can enter", path);
  }
  return path;
}

std::optional<Entry> read_entry(const fs::path& path) {
  std::ifstream file(path);
  Entry entry;
  int format = 0;
  file >> format >> entry.process.pid >> entry.process.started >> entry.process.pid_namespace >> entry.born >>
      entry.endpoint.gpu >> entry.endpoint.port >> entry.endpoint.address;
  if (!file || format != kEntryFormat || entry.endpoint.port == 0) return std::nullopt;
  return entry;
}

/// Newer than the other, but any other process before this one.
bool better(const Entry& entry, const Entry& than) {
  const auto own = static_cast<std::uint64_t>(::getpid());
  const bool foreign = entry.process.pid != own;
  if (foreign != (than.process.pid != own)) return foreign;
  return entry.born > than.born;
}

/// The process has gone, or its PID belongs to another one now.
bool abandoned(const Entry& entry, std::uint64_t pid_namespace) {
  if (entry.process.pid_namespace != pid_namespace) return false;
  const auto started = start_of(entry.process.pid);
  return started ? *started != entry.process.started : started.error().code == ErrorCode::kNotFound;
}

/// The best entry that is there now.
std::optional<Entry> look(const std::string& place, std::int32_t gpu,
                          const std::optional<std::string>& address) {
  const std::uint64_t pid_namespace = namespace_id("pid").value_or(0);
  std::optional<Entry> best;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(place, error)) {
    if (!file.path().filename().string().starts_with(kEntryPrefix)) continue;
    std::optional<Entry> entry = read_entry(file.path());
    if (!entry) continue;  // being removed
    if (abandoned(*entry, pid_namespace)) {
      ::unlink(file.path().c_str());
      continue;
    }
    if (entry->endpoint.gpu != gpu || (address && entry->endpoint.address != *address)) continue;
    if (!best || better(*entry, *best)) best = std::move(entry);
  }
  return best;
}

Result<UniqueFd> watch(const std::string& place) {
  UniqueFd fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!fd || ::inotify_add_watch(fd.get(), place.c_str(), IN_MOVED_TO) < 0) {
    return tl::unexpected(system_error(fmt::format("watch {}", place)));
  }
  return fd;
}

}  // namespace

Result<LocalListing> LocalListing::announce(const Endpoint& endpoint, std::int32_t gpu) {
  const Result<std::string> place = directory();
  if (!place) return tl::unexpected(place.error());
  // Without /proc others cannot find out whether this process has gone.
  const auto process = this_process().value_or(ProcessId{.pid = static_cast<std::uint64_t>(::getpid())});
  const Incarnation incarnation = endpoint.incarnation();
  const std::string name = fmt::format("{}/{}{}-{}-{}", *place, kEntryPrefix, gpu, process.pid, incarnation);
  const std::string draft = fmt::format("{}/.draft-{}", *place, incarnation);
  std::ofstream file(draft, std::ios::trunc);
  file << kEntryFormat << ' ' << process.pid << ' ' << process.started << ' ' << process.pid_namespace << ' '
       << std::chrono::system_clock::now().time_since_epoch().count() << ' ' << gpu << ' ' << endpoint.port()
       << ' ' << endpoint.address() << '\n';
  file.close();
  // By rename, so that readers see the whole file or none.
  if (!file || ::rename(draft.c_str(), name.c_str()) != 0) {
    return tl::unexpected(system_error(fmt::format("write {}", name)));
  }
  LocalListing announced;
  announced.path_ = name;
  return announced;
}

LocalListing::LocalListing(LocalListing&& other) noexcept : path_(std::exchange(other.path_, {})) {}

LocalListing& LocalListing::operator=(LocalListing&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

LocalListing::~LocalListing() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

Result<LocalEndpoint> find_local(std::int32_t gpu, const std::optional<std::string>& address,
                                 std::chrono::nanoseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const Result<std::string> place = directory();
  if (!place) return tl::unexpected(place.error());
  UniqueFd arrivals;
  for (;;) {
    if (std::optional<Entry> found = look(*place, gpu, address)) return std::move(found->endpoint);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) {
      return fail(ErrorCode::kNotFound, "no process of this user on this host has an endpoint for GPU {}{}",
                  gpu, address ? " at " + *address : "");
    }
    if (!arrivals) {
      // One may have come before the watch began: look again before waiting.
      if (Status watched = move_into(arrivals, watch(*place)); !watched)
        return tl::unexpected(watched.error());
      continue;
    }
    pollfd one{.fd = arrivals.get(), .events = POLLIN, .revents = 0};
    if (::poll(&one, 1, static_cast<int>(left.count())) <= 0) continue;
    alignas(inotify_event) std::array<char, 4096> events;  // what they say does not matter
    while (::read(arrivals.get(), events.data(), events.size()) > 0) {
    }
  }
}

}  // namespace p2p
