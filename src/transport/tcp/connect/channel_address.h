// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/bytes.h"
#include "drivers/socket/address.h"
#include "p2p/result.h"
#include "transport/stream_port.h"

namespace p2p::tcp {

/// Drawn for each listening channel: who does not know it is turned away before anything is computed.
using Token = StreamPort::Token;

/// What a channel's `address` holds. A connector's has port 0 and no token: nobody dials it. Byte table in
/// docs/wire.md, section "Data streams".
struct ChannelAddress {
  socket::Address address;  ///< none: where the session was dialled
  Token token{};

  Bytes encode() const;
  static Result<ChannelAddress> decode(ByteView bytes);
};

}  // namespace p2p::tcp
