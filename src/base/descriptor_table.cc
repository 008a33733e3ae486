// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/descriptor_table.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/unique_fd.h"

namespace p2p {

std::size_t descriptor_limit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// The table's size follows the highest descriptor number, not how many there are.
void make_room_for_descriptors(std::size_t count) {
  const std::size_t most = std::min(count, descriptor_limit());
  const UniqueFd any = UniqueFd::of(::eventfd, 0, EFD_CLOEXEC);
  if (!any || most == 0) return;
  const UniqueFd last = UniqueFd::of(::fcntl, any.get(), F_DUPFD_CLOEXEC, static_cast<int>(most - 1));
}

}  // namespace p2p
