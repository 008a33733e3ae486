// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/descriptor_table.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/unique_fd.h"

namespace p2p {

// The table grows for the number of a descriptor, not for how many there are.
void make_room_for_descriptors(std::size_t count) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto most = std::min<rlim_t>(count, limit.rlim_cur);
  const UniqueFd any(::eventfd(0, EFD_CLOEXEC));
  if (!any || most == 0) return;
  const UniqueFd last(::fcntl(any.get(), F_DUPFD_CLOEXEC, static_cast<int>(most - 1)));
}

}  // namespace p2p
