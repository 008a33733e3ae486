// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/default_address.h"

#include <sys/socket.h>

#include "base/unique_fd.h"
#include "drivers/socket/address.h"
#include "drivers/socket/socket.h"

namespace p2p::socket {

std::string default_address() {
  // Addresses kept for documentation (RFC 5737, RFC 3849): only the default route leads there, and
  // connecting a datagram socket asks the routing table without sending.
  for (const char* const far : {"192.0.2.1", "2001:db8::1"}) {
    const auto remote = Address::parse(far, 9);
    if (!remote) continue;
    const UniqueFd probe(::socket(remote->family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!probe || ::connect(probe.get(), remote->raw(), remote->raw_size()) != 0) continue;
    if (const auto local = local_address(probe.get())) return local->text();
  }
  return "127.0.0.1";
}

}  // namespace p2p::socket
