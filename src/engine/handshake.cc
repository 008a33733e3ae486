// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/handshake.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "drivers/crypto/crypto.h"
#include "wire/encode.h"

namespace p2p::engine {
namespace {

constexpr std::string_view kConnectorProof = "p2p connector proof";
constexpr std::string_view kAcceptorProof = "p2p acceptor proof";
constexpr std::string_view kSecret = "p2p session secret";

/// Stands in for the key where there is none: the secret is then known to whoever saw the hellos.
constexpr std::string_view kNoKey = "p2p without a key";

std::string_view proof_label(Role role) {
  return role == Role::kConnector ? kConnectorProof : kAcceptorProof;
}

/// A peer's text, fit for a log line.
std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 300;
  std::string clean(text.substr(0, kLongest));
  std::replace_if(clean.begin(), clean.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return clean;
}

std::string_view key_state(bool authenticated) { return authenticated ? "a key" : "no key"; }

}  // namespace

Handshake::Handshake(Setup setup) : setup_(std::move(setup)) {
  setup_.hello.version = wire::kVersion;
  setup_.hello.authenticated = setup_.key.empty() ? 0 : 1;
}

Handshake::Step Handshake::start() {
  Step step;
  if (setup_.role == Role::kConnector) step.send.emplace_back(setup_.hello);
  return step;
}

Handshake::Step Handshake::take(wire::Message message) {
  if (const auto* hello = std::get_if<wire::Hello>(&message); hello && stage_ == Stage::kHello) {
    return take_hello(*hello);
  }
  if (const auto* proof = std::get_if<wire::Proof>(&message); proof && stage_ == Stage::kProof) {
    return take_proof(*proof);
  }
  if (auto* introduction = std::get_if<wire::Introduction>(&message);
      introduction && stage_ == Stage::kIntroduction) {
    return take_introduction(std::move(*introduction));
  }
  Step step;
  if (const auto* bye = std::get_if<wire::Bye>(&message); bye && stage_ != Stage::kDone) {
    const auto code = stage_ == Stage::kProof ? ErrorCode::kPermissionDenied : ErrorCode::kUnavailable;
    step.error = Error{code, fmt::format("the peer refused: {}", printable(bye->reason))};
  } else {
    step.error =
        Error{ErrorCode::kProtocol, fmt::format("a {} came instead of {}", wire::name(message), awaits())};
  }
  return step;
}

std::optional<Error> Handshake::mismatch(const wire::Hello& hello) const {
  if (hello.version != wire::kVersion) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("protocol versions differ: this side speaks {}, the peer {}", wire::kVersion,
                             hello.version)};
  }
  if (hello.authenticated != setup_.hello.authenticated) {
    return Error{
        ErrorCode::kPermissionDenied,
        fmt::format("either both sides or neither must have a pre-shared key: this side has {}, the "
                    "peer has {}",
                    key_state(setup_.hello.authenticated != 0), key_state(hello.authenticated != 0))};
  }
  if (hello.nonce == setup_.hello.nonce) {
    return Error{ErrorCode::kProtocol, "this side's own hello came back"};
  }
  return std::nullopt;
}

Handshake::Step Handshake::take_hello(const wire::Hello& hello) {
  Step step;
  if (setup_.role == Role::kAcceptor) step.send.emplace_back(setup_.hello);
  if (hello.authenticated > 1) {
    step.send.clear();
    step.error = Error{ErrorCode::kProtocol, "the peer's hello neither demands a proof nor does without"};
    return step;
  }
  if (auto error = mismatch(hello)) {
    Step end = give_up(std::move(*error));
    end.send.insert(end.send.begin(), step.send.begin(), step.send.end());
    return end;
  }
  theirs_ = hello;
  if (setup_.key.empty()) {
    step.send.emplace_back(setup_.introduction);
    stage_ = Stage::kIntroduction;
    return step;
  }
  // The acceptor proves itself only to who did so first: what it says about the key is for peers alone.
  if (setup_.role == Role::kConnector) step.send.emplace_back(wire::Proof{mac(kConnectorProof)});
  stage_ = Stage::kProof;
  return step;
}

Handshake::Step Handshake::take_proof(const wire::Proof& proof) {
  if (!crypto::equal(proof.mac, mac(proof_label(peer_role())))) {
    return give_up(Error{ErrorCode::kPermissionDenied,
                         "the peer's proof does not hold: the two sides have different keys"});
  }
  Step step;
  if (setup_.role == Role::kAcceptor) step.send.emplace_back(wire::Proof{mac(kAcceptorProof)});
  step.send.emplace_back(setup_.introduction);
  stage_ = Stage::kIntroduction;
  return step;
}

Handshake::Step Handshake::take_introduction(wire::Introduction introduction) {
  if (introduction.note.size() > kMaxNoteBytes) {
    return give_up(Error{ErrorCode::kProtocol, fmt::format("the peer's note has {} bytes, more than {}",
                                                           introduction.note.size(), kMaxNoteBytes)});
  }
  peer_introduction_ = std::move(introduction);
  stage_ = Stage::kDone;
  return {};
}

Handshake::Step Handshake::give_up(Error error) const {
  Step step;
  step.send.emplace_back(wire::Bye{error.message});
  step.error = std::move(error);
  return step;
}

Role Handshake::peer_role() const {
  return setup_.role == Role::kConnector ? Role::kAcceptor : Role::kConnector;
}

std::array<std::byte, 32> Handshake::mac(std::string_view label) const {
  const bool connector = setup_.role == Role::kConnector;
  Bytes transcript;
  ByteWriter out(transcript);
  out.put(as_bytes(label));
  out.put(ByteView(wire::encode(connector ? setup_.hello : theirs_)));
  out.put(ByteView(wire::encode(connector ? theirs_ : setup_.hello)));
  return crypto::hmac_sha256(setup_.key.empty() ? as_bytes(kNoKey) : ByteView(setup_.key), transcript);
}

std::array<std::byte, 32> Handshake::secret() const { return mac(kSecret); }

std::size_t Handshake::max_frame_bytes() const {
  return stage_ == Stage::kHello || stage_ == Stage::kProof ? kStrangerFrameBytes : wire::kMaxFrameBytes;
}

std::string_view Handshake::awaits() const {
  switch (stage_) {
    case Stage::kHello: return "the peer's hello";
    case Stage::kProof: return "the peer's proof that it has the key";
    case Stage::kIntroduction: return "the peer's introduction";
    case Stage::kDone: break;
  }
  return "nothing more";
}

}  // namespace p2p::engine
