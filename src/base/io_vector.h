// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <vector>

/// Lists of memory for calls that scatter and gather.
namespace p2p {

inline std::size_t total_bytes(std::span<const iovec> list) {
  std::size_t bytes = 0;
  for (const iovec& entry : list) bytes += entry.iov_len;
  return bytes;
}

/// Appends a run of memory; one that begins where the last one ends is merged with it.
inline void append_run(std::vector<iovec>& list, std::byte* data, std::size_t size) {
  if (!list.empty() && static_cast<std::byte*>(list.back().iov_base) + list.back().iov_len == data) {
    list.back().iov_len += size;
  } else {
    list.push_back({data, size});
  }
}

/// Takes the first `bytes` off the list, at most all of it. Returns how many entries are used up whole; the
/// next one begins behind what was taken of it.
inline std::size_t cut_front(std::span<iovec> list, std::size_t bytes) {
  std::size_t used = 0;
  for (; used != list.size() && bytes >= list[used].iov_len; ++used) bytes -= list[used].iov_len;
  if (bytes != 0 && used != list.size()) {
    list[used].iov_base = static_cast<std::byte*>(list[used].iov_base) + bytes;
    list[used].iov_len -= bytes;
  }
  return used;
}

}  // namespace p2p
