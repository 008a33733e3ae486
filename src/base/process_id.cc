// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/process_id.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace p2p {
namespace {

constexpr std::size_t kBootIdLength = 36;

Result<std::string> read_text(const char* path) {
  std::ifstream file(path);
  if (!file) {
    const int number = errno;
    Error error = system_error(fmt::format("read {}", path), number);
    if (number == ENOENT) error.code = ErrorCode::kNotFound;
    return tl::unexpected(std::move(error));
  }
  std::ostringstream text;
  if (!(text << file.rdbuf())) return fail(ErrorCode::kSystem, "read {}", path);
  return text.str();
}

Result<std::array<std::byte, 16>> boot_id_bytes() {
  const auto text = boot_id();
  if (!text) return tl::unexpected(text.error());
  std::string digits = *text;
  std::erase(digits, '-');
  std::array<std::byte, 16> id{};
  if (digits.size() != 2 * id.size()) return fail(ErrorCode::kSystem, "read the boot id: it is {}", *text);
  for (std::size_t i = 0; i < id.size(); ++i) {
    unsigned value = 0;
    const char* at = digits.data() + 2 * i;
    if (std::from_chars(at, at + 2, value, 16).ptr != at + 2) {
      return fail(ErrorCode::kSystem, "read the boot id: it is {}", *text);
    }
    id[i] = static_cast<std::byte>(value);
  }
  return id;
}

}  // namespace

Result<std::string> boot_id() {
  constexpr const char* kPath = "/proc/sys/kernel/random/boot_id";
  auto text = read_text(kPath);
  if (!text) return text;
  if (text->size() < kBootIdLength) return fail(ErrorCode::kSystem, "read {}: it is \"{}\"", kPath, *text);
  text->resize(kBootIdLength);
  return text;
}

Result<std::uint64_t> namespace_id(const char* kind) {
  const std::string path = fmt::format("/proc/self/ns/{}", kind);
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) {
    return tl::unexpected(system_error(fmt::format("find this process's namespaces: stat {}", path)));
  }
  return status.st_ino;
}

/// Field 22 of /proc/<pid>/stat. Field 2, the program's name, may contain anything and ends with the last
/// parenthesis of the line.
Result<std::uint64_t> start_of(std::uint64_t pid) {
  const std::string path = fmt::format("/proc/{}/stat", pid);
  const auto text = read_text(path.c_str());
  if (!text && text.error().code == ErrorCode::kNotFound && ::access("/proc/self/stat", F_OK) == 0) {
    return fail(ErrorCode::kNotFound, "look at process {}: there is none", pid);
  }
  if (!text) return tl::unexpected(text.error());
  const std::size_t name_end = text->rfind(')');
  std::istringstream fields(name_end == std::string::npos ? "" : text->substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;
  std::uint64_t ticks = 0;
  if (!fields || std::from_chars(field.data(), field.data() + field.size(), ticks).ec != std::errc{}) {
    return fail(ErrorCode::kSystem, "read the start time of process {} from {}", pid, path);
  }
  return ticks;
}

Result<ProcessId> this_process() {
  const auto boot = boot_id_bytes();
  if (!boot) return tl::unexpected(boot.error());
  const auto space = namespace_id("pid");
  if (!space) return tl::unexpected(space.error());
  const auto pid = static_cast<std::uint64_t>(::getpid());
  const auto started = start_of(pid);
  if (!started) return tl::unexpected(started.error());
  return ProcessId{*boot, *space, pid, *started};
}

}  // namespace p2p
