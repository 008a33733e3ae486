// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "tcpx/buffer.h"
#include "tcpx/channel.h"

namespace tcpx {

/// The first message of each channel: a token that was drawn for one `listen` and stands in its connection
/// information. A plugin takes any client that reaches its listener, also one of a session that has given up.
/// Lives longer than the channels that carry it.
class Greeting {
 public:
  using Token = std::array<std::byte, 32>;
  static p2p::Result<Token> draw();

  /// With a place for the message of each channel. `type`: as the session registers its memory.
  static p2p::Result<std::unique_ptr<Greeting>> open(int cuda_device, net::abi::PointerType type,
                                                     std::size_t channels);

  /// For the channel to send or to receive.
  Chunk chunk(std::size_t channel);

  bool under_way() const { return progress_->left != 0; }

  /// What all are to carry, before they are sent.
  p2p::Status write(const Token& token) const;

  /// Once all have come: kPermissionDenied for any that is not this one.
  p2p::Status check(const Token& token) const;

  /// Its number in the channels' registrations, which no memory of a user has.
  static constexpr std::uint64_t kMemory = 0;

 private:
  Greeting(TcpxBuffer buffer, net::abi::PointerType type, std::size_t channels);

  TcpxBuffer buffer_;
  Memory memory_;
  std::size_t channels_;
  std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
};

}  // namespace tcpx
