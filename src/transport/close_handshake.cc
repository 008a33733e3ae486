// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/close_handshake.h"

#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/peer_text.h"

namespace p2p {
namespace {

constexpr std::uint8_t kGone = 2;
constexpr std::size_t kMostText = 512;

}  // namespace

void CloseHandshake::send(std::string_view why) {
  if (!connected_ || control_ == nullptr || std::exchange(sent_, true)) return;
  Bytes message;
  ByteWriter writer(message);
  writer.put(kGone);
  writer.put(as_bytes(why.substr(0, kMostText)));
  control_->send(message);
}

Result<std::string> CloseHandshake::receive(std::span<const std::byte> message) {
  ByteReader reader(message);
  const auto kind = reader.get<std::uint8_t>();
  if (!reader.ok() || kind != kGone || reader.left() > kMostText) {
    return fail(ErrorCode::kProtocol, "a message of kind {} and {} bytes between channels", kind,
                message.size());
  }
  received_ = true;
  return PeerText(reader.take(reader.left())).text();
}

}  // namespace p2p
