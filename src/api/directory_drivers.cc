// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "api/directory_drivers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/unique_fd.h"
#include "p2p/host_port.h"

namespace p2p::directories {
namespace {

namespace fs = std::filesystem;
using SystemClock = std::chrono::system_clock;

constexpr std::string_view kSuffix = ".endpoint";
constexpr off_t kMostBytes = 16 << 20;

// After which what was not renewed is removed by whoever looks.
constexpr std::chrono::seconds kSweepAfter{60};

/// The text of a file; nothing if there is none.
Result<std::optional<std::string>> read_file(const std::string& path) {
  const UniqueFd file = UniqueFd::of(::open, path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (!file && errno == ENOENT) return std::optional<std::string>();
  struct stat status{};
  if (!file || ::fstat(file.get(), &status) != 0) {
    return tl::unexpected(system_error(fmt::format("read {}", path)));
  }
  if (!S_ISREG(status.st_mode) || status.st_size > kMostBytes) {
    return fail(ErrorCode::kInvalidArgument, "read {}: it is no file, or too long", path);
  }
  std::string text(static_cast<std::size_t>(status.st_size), 0);
  const ssize_t got = ::pread(file.get(), text.data(), text.size(), 0);
  if (got < 0) return tl::unexpected(system_error(fmt::format("read {}", path)));
  text.resize(static_cast<std::size_t>(got));
  return std::optional(std::move(text));
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

Status read_line(std::string_view line, Entries& found) {
  line = trimmed(line);
  if (line.empty() || line.starts_with('#')) return {};
  const std::size_t equals = line.find('=');
  const auto place = HostPort::parse(trimmed(line.substr(std::min(equals, line.size() - 1) + 1)));
  if (equals == std::string_view::npos || !place || place->port.value_or(0) == 0) {
    return fail(ErrorCode::kInvalidArgument, "read the static directory: \"{}\" is no name=host:port", line);
  }
  const std::string name(trimmed(line.substr(0, equals)));
  found[name] = {name, place->host, *place->port, "0"};
  return {};
}

/// A list that somebody has written: in a file, which is read again at each call, or as it is.
class StaticDirectory : public Driver {
 public:
  explicit StaticDirectory(std::string where) : where_(std::move(where)) {}

  Status put(const DirectoryEntry& entry) override {
    const auto known = get(entry.name);
    if (!known) return tl::unexpected(known.error());
    if (*known && (*known)->address == entry.address && (*known)->port == entry.port) return {};
    return fail(ErrorCode::kUnavailable,
                "publish \"{}\" as {}:{}: nothing can be written to a static directory, and it is {} there",
                entry.name, entry.address, entry.port,
                *known ? fmt::format("{}:{}", (*known)->address, (*known)->port) : "not");
  }

  Status remove(const std::string& /*name*/) override { return {}; }

  Result<std::optional<DirectoryEntry>> get(const std::string& name) override {
    const auto found = all();
    if (!found) return tl::unexpected(found.error());
    const auto at = found->find(name);
    return at == found->end() ? std::nullopt : std::optional(at->second);
  }

  Result<Entries> all() override {
    std::string text = where_;
    if (where_.starts_with('/')) {
      auto read = read_file(where_);
      if (!read) return tl::unexpected(read.error());
      if (!*read) return fail(ErrorCode::kNotFound, "read the static directory {}: there is none", where_);
      text = std::move(**read);
    }
    std::ranges::replace(text, ',', '\n');
    Entries found;
    for (std::string_view left = text; !left.empty();) {
      const std::size_t end = std::min(left.find('\n'), left.size());
      if (Status read = read_line(left.substr(0, end), found); !read) return tl::unexpected(read.error());
      left.remove_prefix(std::min(end + 1, left.size()));
    }
    return found;
  }

 private:
  const std::string where_;
};

/// As in a URL, so that any name is that of a file, and of none that begins with a dot: those are drafts.
std::string name_of_file(std::string_view name) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~";
  std::string out;
  for (const char c : name) {
    if (kPlain.find(c) != std::string_view::npos && (c != '.' || !out.empty())) {
      out.push_back(c);
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::string name_in_file(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(&text[i + 1], &text[i + 1] + 2, code, 16).ptr == &text[i + 1] + 2) {
      out.push_back(static_cast<char>(code));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

/// One file for each name, in a folder of this host or of a file system that hosts share.
class FolderDirectory : public Driver {
 public:
  FolderDirectory(std::string folder, std::chrono::milliseconds lease)
      : folder_(std::move(folder)), lease_(lease) {}

  Status put(const DirectoryEntry& entry) override {
    std::error_code error;
    fs::create_directories(folder_, error);
    const std::string path = path_of(entry.name);
    const std::string draft = fmt::format("{}/.{}-{}-{}{}", folder_, ::getpid(), static_cast<void*>(this),
                                          drafts_.fetch_add(1), kSuffix);
    const std::string text = text_of(entry, SystemClock::now() + lease_);
    {
      const UniqueFd file =
          UniqueFd::of(::open, draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      const auto size = static_cast<ssize_t>(text.size());
      // By rename, so that readers see the whole file or none.
      if (file && ::write(file.get(), text.data(), text.size()) == size &&
          ::rename(draft.c_str(), path.c_str()) == 0) {
        return {};
      }
    }
    Error failed = system_error(fmt::format("publish \"{}\" in {}", entry.name, folder_));
    ::unlink(draft.c_str());
    return tl::unexpected(std::move(failed));
  }

  Status remove(const std::string& name) override {
    if (::unlink(path_of(name).c_str()) == 0 || errno == ENOENT) return {};
    return tl::unexpected(system_error(fmt::format("withdraw \"{}\" in {}", name, folder_)));
  }

  Result<std::optional<DirectoryEntry>> get(const std::string& name) override {
    const auto text = read_file(path_of(name));
    if (!text) return tl::unexpected(text.error());
    return *text ? parse(name, **text, SystemClock::now()) : std::nullopt;
  }

  Result<Entries> all() override {
    Entries found;
    std::error_code error;
    for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
      const std::string file = at->path().filename().string();
      if (!file.ends_with(kSuffix)) continue;
      const std::string name = name_in_file(std::string_view(file).substr(0, file.size() - kSuffix.size()));
      const auto entry =
          file.starts_with('.') ? std::optional<DirectoryEntry>() : get(name).value_or(std::nullopt);
      if (entry) {
        found[name] = *entry;
      } else {
        sweep(at->path());
      }
    }
    if (!error || error == std::errc::no_such_file_or_directory) return found;
    return fail(ErrorCode::kSystem, "list {}: {}", folder_, error.message());
  }

 private:
  std::string path_of(const std::string& name) const {
    return fmt::format("{}/{}{}", folder_, name_of_file(name), kSuffix);
  }

  static void sweep(const fs::path& path) {
    std::error_code error;
    const auto written = fs::last_write_time(path, error);
    if (!error && written + kSweepAfter < fs::file_time_type::clock::now()) fs::remove(path, error);
  }

  const std::string folder_;
  const std::chrono::milliseconds lease_;
  std::atomic<unsigned> drafts_{0};
};

}  // namespace

Status Driver::renew(const Entries& published) {
  Status renewed;
  for (const auto& [name, entry] : published) {
    if (Status listed = put(entry); !listed) renewed = listed;
  }
  return renewed;
}

void Driver::end(const Entries& published) {
  for (const auto& [name, entry] : published) static_cast<void>(remove(name));
}

Result<std::unique_ptr<Driver>> Driver::of(const std::string& where, std::chrono::milliseconds lease) {
  constexpr std::string_view kStatic = "static://";
  constexpr std::string_view kFolder = "folder://";
  constexpr std::string_view kEtcd = "etcd://";
  constexpr std::string_view kDns = "k8s://";
  if (where.starts_with(kStatic)) {
    std::string list = where.substr(kStatic.size());
    if (list.starts_with('$')) {
      // The application's variable; no option of ours. NOLINTNEXTLINE(concurrency-mt-unsafe)
      const char* const value = std::getenv(list.c_str() + 1);
      if (value == nullptr) {
        return fail(ErrorCode::kInvalidArgument, "use the directory {}: the variable is not set", where);
      }
      list = value;
    }
    return std::make_unique<StaticDirectory>(std::move(list));
  }
  if (where.starts_with(kFolder)) {
    std::string folder = where.substr(kFolder.size());
    if (!folder.starts_with('/')) {
      return fail(ErrorCode::kInvalidArgument, "use the directory {}: it is no absolute path", where);
    }
    return std::make_unique<FolderDirectory>(std::move(folder), lease);
  }
  if (where.starts_with(kEtcd)) return in_etcd(where.substr(kEtcd.size()), lease);
  if (where.starts_with(kDns)) return in_dns(where.substr(kDns.size()));
  return fail(ErrorCode::kInvalidArgument,
              "use the directory \"{}\": one of static://, folder://, etcd://, k8s://; others are Python's",
              where);
}

}  // namespace p2p::directories
