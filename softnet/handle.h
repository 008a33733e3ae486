// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>

#include "drivers/nccl_net/abi/types.h"

namespace softnet {

/// The listener's address as it travels in the host's 128-byte buffer. Its first 88 bytes lie as in a handle
/// of GPUDirect-TCPX, so that hosts can check one as the other. `attempt` is written by `connect`.
struct Handle {
  static constexpr std::uint64_t kMagic = 0x656c646e61687473;
  sockaddr_in6 address{};
  std::int32_t first_port = -1;  ///< of a range that nobody uses
  std::int32_t ports = -1;
  std::int32_t sockets = 1;
  std::int32_t threads = 1;
  std::int32_t redirected = 0;
  sockaddr_in6 control{};  ///< unused
  std::uint32_t padding = 0;
  std::uint64_t attempt = 0;
  std::uint64_t magic = kMagic;
  std::uint64_t cookie = 0;  ///< what the connector must show
};
static_assert(offsetof(Handle, attempt) == 80);
static_assert(sizeof(Handle) <= p2p::nccl_net::abi::kHandleBytes);

/// Between a handle and the host's buffer of abi::kHandleBytes, where the habits say how its fields lie.
Handle read_handle(const void* buffer);
void write_handle(const Handle& handle, void* buffer);

}  // namespace softnet
