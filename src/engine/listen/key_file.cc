// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/listen/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/unique_fd.h"

namespace p2p::engine {
namespace {

constexpr std::size_t kMinBytes = 16;
constexpr std::size_t kMaxBytes = std::size_t{64} << 10;
constexpr std::size_t kLongestName = 64;

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kNameLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

struct Line {
  std::string_view name;
  std::string_view secret;
};

std::optional<Line> split(std::string_view line) {
  const std::size_t colon = line.find_first_not_of(kNameLetters);
  if (colon == std::string_view::npos || line[colon] != ':' || colon > kLongestName) return std::nullopt;
  return Line{line.substr(0, colon), trim(line.substr(colon + 1))};
}

Status check_mode(int file, const std::string& what) {
  struct stat status{};
  if (::fstat(file, &status) != 0) return tl::unexpected(system_error(what));
  if ((status.st_mode & (S_IROTH | S_IWOTH)) == 0) return {};
  return fail(ErrorCode::kPermissionDenied, "{}: everybody may read or write it; chmod o-rw it", what);
}

Result<std::string> read_private(const std::string& path, const std::string& what) {
  const UniqueFd file = UniqueFd::of(::open, path.c_str(), O_RDONLY | O_CLOEXEC);
  if (!file) return tl::unexpected(system_error(what));
  if (Status good = check_mode(file.get(), what); !good) return tl::unexpected(good.error());
  std::string text;
  std::array<char, 4096> buffer{};
  while (text.size() <= kMaxBytes) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got < 0) return tl::unexpected(system_error(what));
    if (got == 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
  if (text.size() > kMaxBytes)
    return fail(ErrorCode::kInvalidArgument, "{}: longer than {} bytes", what, kMaxBytes);
  return text;
}

/// Adds a key to those that were read before it.
Status add(std::vector<crypto::NamedKey>& keys, const Line& line, const std::string& what) {
  const auto about = [&] {
    return line.name.empty() ? std::string("a key") : fmt::format("the key '{}'", line.name);
  };
  if (line.secret.size() < kMinBytes) {
    return fail(ErrorCode::kInvalidArgument, "{}: {} has {} bytes; a secret needs at least {}", what, about(),
                line.secret.size(), kMinBytes);
  }
  if (std::ranges::find(keys, line.name, &crypto::NamedKey::name) != keys.end()) {
    return fail(ErrorCode::kInvalidArgument, "{}: {} comes twice", what, about());
  }
  const ByteView secret = as_bytes(line.secret);
  keys.push_back({std::string(line.name), Bytes(secret.begin(), secret.end())});
  return {};
}

}  // namespace

Status check_private(const std::string& path) {
  const std::string what = "read " + path;
  const UniqueFd file = UniqueFd::of(::open, path.c_str(), O_RDONLY | O_CLOEXEC);
  if (!file) return tl::unexpected(system_error(what));
  return check_mode(file.get(), what);
}

Result<std::vector<crypto::NamedKey>> read_key_file(const std::string& path) {
  const std::string what = "read the key file " + path;
  const auto text = read_private(path, what);
  if (!text) return tl::unexpected(text.error());
  std::string_view left = trim(*text);
  if (left.empty()) return fail(ErrorCode::kInvalidArgument, "{}: it is empty", what);
  std::vector<crypto::NamedKey> keys;
  if (!split(left)) {
    if (Status added = add(keys, {{}, left}, what); !added) return tl::unexpected(added.error());
    return keys;
  }
  for (int number = 1; !left.empty(); ++number) {
    const std::size_t end = std::min(left.find('\n'), left.size());
    const std::string_view text_line = trim(left.substr(0, end));
    left.remove_prefix(std::min(end + 1, left.size()));
    if (text_line.empty()) continue;
    const auto line = split(text_line);
    if (!line) return fail(ErrorCode::kInvalidArgument, "{}: line {} is not name:secret", what, number);
    if (Status added = add(keys, *line, what); !added) return tl::unexpected(added.error());
  }
  return keys;
}

}  // namespace p2p::engine
