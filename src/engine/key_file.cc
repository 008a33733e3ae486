// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <string_view>

#include "base/error.h"
#include "base/unique_fd.h"

namespace p2p::engine {
namespace {

constexpr std::size_t kMinBytes = 16;
constexpr std::size_t kMaxBytes = std::size_t{64} << 10;

}  // namespace

Result<Bytes> read_key_file(const std::string& path) {
  const std::string what = "read the key file " + path;
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return tl::unexpected(system_error(what));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) return tl::unexpected(system_error(what));
  if ((status.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    return fail(ErrorCode::kPermissionDenied, "{}: everybody may read or write it; chmod o-rw it", what);
  }
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
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string::npos) return fail(ErrorCode::kInvalidArgument, "{}: it is empty", what);
  const std::string key = text.substr(first, text.find_last_not_of(kSpace) - first + 1);
  if (key.size() < kMinBytes) {
    return fail(ErrorCode::kInvalidArgument, "{}: a key of {} bytes; at least {} are asked", what, key.size(),
                kMinBytes);
  }
  const ByteView bytes = as_bytes(key);
  return Bytes(bytes.begin(), bytes.end());
}

}  // namespace p2p::engine
