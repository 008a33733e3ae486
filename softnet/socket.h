// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/unique_fd.h"

namespace softnet {

using p2p::UniqueFd;

/// Bytes a socket call moved. Negative: the connection is lost, errno says why (0: the peer closed it).
inline constexpr long kLost = -1;

/// A non-blocking TCP socket of the address's family; invalid with errno on failure.
UniqueFd make_socket(const sockaddr_in6& address);

/// Small segments at once, and a host that has gone noticed within the timeout of the settings while nothing
/// is on its way.
void prepare_stream(int fd);

/// For a connection within one host: no congestion control that paces, as BBR does, whose timers take a
/// fourth of a sender's time there. Before it is connected; where the system does not allow it all stays as
/// it is.
void send_unpaced(int fd);

/// Bytes are on their way and the peer's host has acknowledged nothing, no probe either, for the timeout of
/// the settings. One that lives and has no room for more answers probes.
bool peer_is_silent(int fd);

socklen_t address_size(const sockaddr_in6& address);

/// Whether what a call sends waits a moment for what the next one does.
enum class Follows : std::uint8_t { kNothing, kMore };

/// Never block; raise no signal unless the habits say so; 0 if the socket cannot take or give anything now.
long send_some(int fd, std::span<iovec> pieces, Follows follows = Follows::kNothing);
long splice_some(int pipe, int fd, std::size_t bytes);
long receive_some(int fd, std::span<iovec> pieces);

/// Takes `moved` bytes off the front of `pieces`; returns the pieces that are left.
std::span<iovec> advance(std::span<iovec> pieces, std::size_t moved);

/// Drops what lies beyond `limit` bytes.
std::span<iovec> clip(std::span<iovec> pieces, std::size_t limit);

}  // namespace softnet
