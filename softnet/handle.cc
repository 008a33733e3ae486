// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "softnet/handle.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "softnet/settings.h"

namespace softnet {
namespace {

/// A handle as FasTrak lays it out. Whoever reads one goes to `comm` as `state` says, without a question.
struct LaidOutAsFasTrak {
  std::uint8_t version = 1;
  std::uint8_t gpu = 0;
  std::uint8_t unused[2] = {};
  sockaddr_in6 control{};
  std::array<char, 40> address{};  ///< as text
  std::uint64_t ports[2] = {};     ///< here the cookie and the magic number
  std::uint64_t state = 0;
  std::uint64_t comm = 0;  ///< here the number of the attempt
};
static_assert(offsetof(LaidOutAsFasTrak, address) == 32 && offsetof(LaidOutAsFasTrak, ports) == 72);
static_assert(offsetof(LaidOutAsFasTrak, state) == 88 && sizeof(LaidOutAsFasTrak) == 104);

LaidOutAsFasTrak as_fastrak(const Handle& handle) {
  LaidOutAsFasTrak made;
  made.control = handle.address;
  const auto* const v4 = reinterpret_cast<const sockaddr_in*>(&handle.address);
  const bool v6 = handle.address.sin6_family == AF_INET6;
  const void* const address = v6 ? static_cast<const void*>(&handle.address.sin6_addr) : &v4->sin_addr;
  ::inet_ntop(v6 ? AF_INET6 : AF_INET, address, made.address.data(), made.address.size());
  made.ports[0] = handle.cookie;
  made.ports[1] = handle.magic;
  made.state = handle.attempt == 0 ? 0 : 1;
  made.comm = handle.attempt;
  return made;
}

/// With the habit the first 80 bytes lie the other way round in the host's buffer.
void turn_if_asked(std::byte* bytes) {
  if (settings().habits.other_handles) std::reverse(bytes, bytes + offsetof(Handle, attempt));
}

}  // namespace

Handle read_handle(const void* buffer) {
  Handle handle;
  if (settings().habits.tcpxo) {
    LaidOutAsFasTrak given;
    std::memcpy(&given, buffer, sizeof given);
    handle.address = given.control;
    handle.cookie = given.ports[0];
    handle.magic = given.ports[1];
    handle.attempt = given.state == 0 ? 0 : given.comm;
    return handle;
  }
  std::memcpy(&handle, buffer, sizeof handle);
  turn_if_asked(reinterpret_cast<std::byte*>(&handle));
  return handle;
}

void write_handle(const Handle& handle, void* buffer) {
  std::memset(buffer, 0, p2p::nccl_net::abi::kHandleBytes);
  if (settings().habits.tcpxo) {
    const LaidOutAsFasTrak made = as_fastrak(handle);
    std::memcpy(buffer, &made, sizeof made);
    return;
  }
  std::memcpy(buffer, &handle, sizeof handle);
  turn_if_asked(static_cast<std::byte*>(buffer));
}

}  // namespace softnet
