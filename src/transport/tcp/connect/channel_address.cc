// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/connect/channel_address.h"

#include <algorithm>

#include "base/error.h"
#include "transport/tcp/connect/handshake.h"

namespace p2p::tcp {

Bytes ChannelAddress::encode() const {
  std::string text = address.family() == AF_UNSPEC ? "" : address.text();
  text.resize(std::min(text.size(), text.find('%')));  // an interface's name means nothing elsewhere
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.put(kHandshakeVersion);
  writer.put(address.port());
  writer.put(ByteView(token));
  writer.put(static_cast<std::uint8_t>(text.size()));
  writer.put(as_bytes(text));
  return bytes;
}

Result<ChannelAddress> ChannelAddress::decode(ByteView bytes) {
  ByteReader reader(bytes);
  const auto version = reader.get<std::uint16_t>();
  const auto port = reader.get<std::uint16_t>();
  ChannelAddress result;
  take(reader, result.token);
  const std::string text = to_string(reader.take(reader.get<std::uint8_t>()));
  if (!reader.ok() || reader.left() != 0 || version != kHandshakeVersion) {
    return fail(ErrorCode::kProtocol, "{} bytes are no address of a tcp channel of version {}", bytes.size(),
                kHandshakeVersion);
  }
  if (text.empty() && port == 0) return result;
  Result<socket::Address> address = socket::Address::parse(text, port);
  if (!address) return tl::unexpected(Error{ErrorCode::kProtocol, address.error().message});
  result.address = *address;
  return result;
}

}  // namespace p2p::tcp
