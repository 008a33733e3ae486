// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "softnet/unread.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "softnet/comm.h"

namespace softnet {
namespace {

struct Closed {
  UniqueFd socket;
  std::vector<Pool::Extent> extents;
  std::size_t messages = 0;
};

struct AllClosed {
  std::mutex mutex;
  std::vector<Closed> comms;
};

AllClosed& all_closed() {
  static AllClosed* const all = new AllClosed;
  return *all;
}

/// True once the peer reads no more of it.
bool read_out(Closed& comm) {
  while (comm.messages != 0) {
    const long heard = hear_reads(comm.socket.get());
    if (heard == 0) return false;
    if (heard == kLost) break;
    comm.messages -= std::min(comm.messages, static_cast<std::size_t>(heard));
  }
  for (const Pool::Extent extent : comm.extents) Pool::of_sends()->give_back(extent);
  return true;
}

}  // namespace

long hear_reads(int fd) {
  std::array<std::byte, kRequests> words{};
  iovec room{words.data(), words.size()};
  return receive_some(fd, {&room, 1});
}

void keep_unread(UniqueFd socket, std::vector<Pool::Extent> extents, std::size_t messages) {
  ::shutdown(socket.get(), SHUT_WR);
  AllClosed& all = all_closed();
  const std::lock_guard lock(all.mutex);
  all.comms.push_back({std::move(socket), std::move(extents), messages});
}

void sweep_unread() {
  AllClosed& all = all_closed();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.comms, read_out);
}

}  // namespace softnet
