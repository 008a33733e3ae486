// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "p2p/result.h"
#include "transport/transport.h"
#include "wire/messages.h"

namespace p2p::engine {

/// One side of the handshake, without a socket: takes the peer's messages, says what to send. A value of one
/// thread.
///
///     connector                      acceptor
///     Hello                     ->
///                               <-   Hello
///     Proof                     ->                   (both have a key)
///                               <-   Proof           (only once the connector's holds)
///                               <-   Introduction
///     Introduction              ->
///
/// A proof is an HMAC-SHA256 under the pre-shared key over the role of its maker and both hellos as sent, so
/// that it binds versions, incarnations and both nonces, and is of no use in another handshake or the other
/// direction. Without keys the proofs are left out. Whoever gives up says why with a Bye, unless what came
/// was not the protocol at all.
class Handshake {
 public:
  /// Longest frame taken from a peer that has not proven itself.
  static constexpr std::size_t kStrangerFrameBytes = 1024;

  /// Longest note in an introduction.
  static constexpr std::size_t kMaxNoteBytes = std::size_t{64} << 10;

  struct Setup {
    Role role = Role::kConnector;
    wire::Hello hello;
    Bytes key;  ///< empty: none
    wire::Introduction introduction;
  };

  /// What to do after a message: send, then go on or give up.
  struct Step {
    std::vector<wire::Message> send;
    std::optional<Error> error;
  };

  explicit Handshake(Setup setup);

  /// The connector's first message; nothing for the acceptor.
  Step start();

  Step take(wire::Message message);

  bool done() const { return stage_ == Stage::kDone; }

  /// The peer's hello has come.
  bool heard() const { return stage_ != Stage::kHello; }

  /// Longest frame to accept now.
  std::size_t max_frame_bytes() const;

  /// What is awaited, for errors: "the peer's hello".
  std::string_view awaits() const;

  /// Once done.
  const wire::Hello& peer_hello() const { return theirs_; }
  const wire::Introduction& peer_introduction() const { return peer_introduction_; }

  /// Once done: the same on both sides, new for each handshake. Secret only if both have a key.
  std::array<std::byte, 32> secret() const;

 private:
  enum class Stage { kHello, kProof, kIntroduction, kDone };

  Step take_hello(const wire::Hello& hello);
  Step take_proof(const wire::Proof& proof);
  Step take_introduction(wire::Introduction introduction);
  Step give_up(Error error) const;
  std::optional<Error> mismatch(const wire::Hello& hello) const;
  std::array<std::byte, 32> mac(std::string_view label) const;
  Role peer_role() const;

  Setup setup_;
  Stage stage_ = Stage::kHello;
  wire::Hello theirs_;
  wire::Introduction peer_introduction_;
};

}  // namespace p2p::engine
