// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/local_listing.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/process_id.h"
#include "base/unique_fd.h"

namespace p2p {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// One line: format, process, its PID namespace, birth (ns of the steady clock, which the processes of a
/// machine share), GPU, port, address.
struct Entry {
  std::uint64_t pid = 0;
  std::uint64_t pid_namespace = 0;
  std::int64_t born = 0;
  LocalEndpoint endpoint;
};
constexpr int kEntryFormat = 2;
constexpr std::size_t kMostBytes = 4096;
constexpr const char* kEntryPrefix = "gpu";

std::string directory_path() {
  // The system's variable; no option of ours. NOLINTNEXTLINE(concurrency-mt-unsafe): nothing here calls
  // setenv
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return fmt::format("{}/uccl_p2p", runtime);
  return fmt::format("/tmp/uccl_p2p-{}", ::geteuid());
}

Result<std::string> directory(const std::string& folder) {
  if (!folder.empty()) return folder;
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

std::optional<Entry> parse(std::string_view text) {
  std::istringstream fields{std::string(text)};
  Entry entry;
  int format = 0;
  fields >> format >> entry.pid >> entry.pid_namespace >> entry.born >> entry.endpoint.gpu >>
      entry.endpoint.port >> entry.endpoint.address;
  if (!fields || format != kEntryFormat || entry.endpoint.port == 0) return std::nullopt;
  return entry;
}

/// What a living process wrote; what a dead one left is removed. The owner's lock tells: it ends with the
/// process, whichever container that was in. A file that cannot be opened, as where this process has no
/// descriptor left, tells nothing.
std::optional<Entry> read_entry(const fs::path& path) {
  const UniqueFd file = UniqueFd::of(::open, path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  struct stat status{};
  if (!file || ::fstat(file.get(), &status) != 0 || status.st_uid != ::geteuid()) return std::nullopt;
  if (::flock(file.get(), LOCK_SH | LOCK_NB) == 0) {
    ::unlink(path.c_str());
    return std::nullopt;
  }
  std::array<char, kMostBytes> text;
  const ssize_t size = ::read(file.get(), text.data(), text.size());
  return size > 0 ? parse({text.data(), static_cast<std::size_t>(size)}) : std::nullopt;
}

/// Newer than the other, but any other process before this one.
bool better(const Entry& entry, const Entry& than) {
  const std::uint64_t own_namespace = namespace_id("pid").value_or(0);
  const auto is_foreign = [&](const Entry& one) {
    return one.pid != static_cast<std::uint64_t>(::getpid()) || one.pid_namespace != own_namespace;
  };
  if (is_foreign(entry) != is_foreign(than)) return is_foreign(entry);
  return entry.born > than.born;
}

/// The best entry that is there now.
std::optional<Entry> look(const std::string& place, std::int32_t gpu,
                          const std::optional<std::string>& address, std::span<const LocalEndpoint> except) {
  std::optional<Entry> best;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(place, error)) {
    if (!file.path().filename().string().starts_with(kEntryPrefix)) continue;
    std::optional<Entry> entry = read_entry(file.path());
    if (!entry || entry->endpoint.gpu != gpu || (address && entry->endpoint.address != *address)) continue;
    if (std::ranges::find(except, entry->endpoint) != except.end()) continue;
    if (!best || better(*entry, *best)) best = std::move(entry);
  }
  return best;
}

Result<UniqueFd> watch(const std::string& place) {
  UniqueFd fd = UniqueFd::of(::inotify_init1, IN_CLOEXEC | IN_NONBLOCK);
  if (!fd || ::inotify_add_watch(fd.get(), place.c_str(), IN_MOVED_TO) < 0) {
    return tl::unexpected(system_error(fmt::format("watch {}", place)));
  }
  return fd;
}

}  // namespace

struct LocalListing::File {
  ~File() {
    if (!birthplace.left()) ::unlink(path.c_str());  // else it is the parent's
  }

  std::string path;
  UniqueFd locked;
  Birthplace birthplace;
};

LocalListing::LocalListing() = default;
LocalListing::LocalListing(LocalListing&& other) noexcept = default;
LocalListing& LocalListing::operator=(LocalListing&& other) noexcept = default;
LocalListing::~LocalListing() = default;

Result<LocalListing> LocalListing::announce(const Endpoint& endpoint, std::int32_t gpu,
                                            const std::string& folder) {
  const Result<std::string> place = directory(folder);
  if (!place) return tl::unexpected(place.error());
  const Incarnation incarnation = endpoint.incarnation();
  const std::string name = fmt::format("{}/{}{}-{}-{}", *place, kEntryPrefix, gpu, ::getpid(), incarnation);
  const std::string text =
      fmt::format("{} {} {} {} {} {} {}\n", kEntryFormat, ::getpid(), namespace_id("pid").value_or(0),
                  std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(), gpu, endpoint.port(),
                  endpoint.address());
  LocalListing announced;
  announced.file_ = std::make_unique<File>();
  announced.file_->path = fmt::format("{}/.draft-{}", *place, incarnation);
  UniqueFd& file = announced.file_->locked;
  file = UniqueFd::of(::open, announced.file_->path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const auto size = static_cast<ssize_t>(text.size());
  // By rename, so that readers see the whole file, locked, or none.
  if (!file || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0 ||
      ::write(file.get(), text.data(), text.size()) != size ||
      ::rename(announced.file_->path.c_str(), name.c_str()) != 0) {
    return tl::unexpected(system_error(fmt::format("write {}", name)));
  }
  announced.file_->path = name;
  return announced;
}

Result<LocalEndpoint> find_local(std::int32_t gpu, const std::optional<std::string>& address,
                                 std::chrono::nanoseconds timeout, std::span<const LocalEndpoint> except,
                                 const std::string& folder) {
  const auto deadline = Clock::now() + timeout;
  const Result<std::string> place = directory(folder);
  if (!place) return tl::unexpected(place.error());
  UniqueFd arrivals;
  for (;;) {
    if (std::optional<Entry> found = look(*place, gpu, address, except)) return std::move(found->endpoint);
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
