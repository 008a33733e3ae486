// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/process_end.h"

#include <poll.h>

#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace p2p {
namespace {

// What a peer may still use when nobody waits for its end any more: nothing else is ever to lie there.
void keep_for_good(std::shared_ptr<const void> thing) {
  static Mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const void>>;
  const MutexLock lock(mutex);
  kept->push_back(std::move(thing));
}

}  // namespace

bool is_open(const UniqueFd& process, const UniqueFd& socket) {
  std::array<pollfd, 2> fds{pollfd{.fd = process.get(), .events = POLLIN, .revents = 0},
                            pollfd{.fd = socket.get(), .events = POLLRDHUP, .revents = 0}};
  int ready = -1;
  do {
    ready = ::poll(fds.data(), fds.size(), 0);
  } while (ready < 0 && errno == EINTR);  // the program's signals tell nothing of the peer
  return ready <= 0;
}

ProcessEnd::ProcessEnd(UniqueFd events, UniqueFd socket, UniqueFd process, std::shared_ptr<const void> kept)
    : events_(std::move(events)),
      socket_(std::move(socket)),
      process_(std::move(process)),
      kept_(std::move(kept)) {}

ProcessEnd::~ProcessEnd() {
  if (kept_ && is_open(process_, socket_)) keep_for_good(std::move(kept_));
}

}  // namespace p2p
