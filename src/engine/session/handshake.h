// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "p2p/options.h"
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
///     TLS                      <->   TLS             (both have a key, or both a certificate)
///     Introduction              ->
///                               <-   Introduction    (each as soon as it believes the other; behind an
///                                                     EncryptionWish where there is one)
///
/// Within TLS the introductions repeat what was said before it, as a digest of both hellos, so that whoever
/// changes one on the way is found out. Whoever gives up says why with a Bye or TLS's alert, unless what came
/// was not the protocol at all.
class Handshake {
 public:
  /// Longest note in an introduction.
  static constexpr std::size_t kMaxNoteBytes = std::size_t{64} << 10;

  struct Setup {
    Role role = Role::kConnector;
    wire::Hello hello;  ///< its versions are filled in
    wire::Introduction introduction;
    std::vector<std::string> allow;  ///< identities that may connect; empty: all
    Encryption encryption = Encryption::kOff;
    wire::Versions versions = wire::kVersions;
  };

  /// What to do after a message: send, then go on, start TLS, or give up.
  struct Step {
    std::vector<wire::Message> send;
    bool seal = false;
    std::optional<Error> error;
  };

  explicit Handshake(Setup setup);

  /// The connector's first message; nothing for the acceptor.
  Step start();

  Step take(wire::Message message);

  /// TLS is there, and says who the peer is.
  Step sealed(std::string identity);

  /// TLS was to start and has not said yet who the peer is.
  bool sealing() const { return stage_ == Stage::kSeal; }

  Role role() const { return setup_.role; }
  bool done() const { return stage_ == Stage::kDone; }

  /// Longest frame to accept now.
  std::size_t max_frame_bytes() const;

  /// What is awaited, for errors: "the peer's hello".
  std::string_view awaits() const;

  /// Once the peer's hello has come: the version that both speak from there on.
  std::uint16_t version() const { return version_; }

  /// Once done: streams of data are to be encrypted, since either side wishes it.
  bool encrypts() const;

  /// Once the peer's hello has come: of both hellos, the connector's first. The same on both sides.
  const wire::Digest& hellos() const { return hellos_; }

  /// Once done.
  const wire::Hello& peer_hello() const { return theirs_; }
  const wire::Introduction& peer_introduction() const { return peer_introduction_; }
  const std::string& peer_identity() const { return identity_; }

 private:
  enum class Stage { kHello, kSeal, kIntroduction, kDone };

  Step take_hello(const wire::Hello& hello);
  Step take_introduction(wire::Introduction introduction);
  Step give_up(Error error) const;
  std::optional<Error> mismatch(const wire::Hello& hello) const;
  bool allowed() const;
  std::optional<Error> clash() const;
  void introduce(Step& step) const;
  bool take_wish(const wire::EncryptionWish& wish);
  bool in_clear() const { return setup_.hello.proof == 0; }

  Setup setup_;
  Stage stage_ = Stage::kHello;
  wire::Hello theirs_;
  std::uint16_t version_ = 0;
  wire::Digest hellos_{};
  std::string identity_;
  std::optional<Encryption> their_wish_;
  wire::Introduction peer_introduction_;
};

}  // namespace p2p::engine
