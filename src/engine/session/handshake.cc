// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/handshake.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "drivers/crypto/crypto.h"
#include "wire/encode.h"

namespace p2p::engine {
namespace {

constexpr std::string_view kHellos = "p2p hellos";

std::string_view show(std::uint8_t proof) {
  switch (wire::Proof{proof}) {
    case wire::Proof::kNone: return "no key";
    case wire::Proof::kKey: return "a key";
    case wire::Proof::kCertificate: return "a certificate";
  }
  return "something unknown";
}

std::string show(wire::Versions versions) {
  if (versions.oldest == versions.newest) return fmt::to_string(versions.oldest);
  return fmt::format("{} to {}", versions.oldest, versions.newest);
}

bool known(std::uint8_t proof) { return proof <= static_cast<std::uint8_t>(wire::Proof::kCertificate); }

wire::Digest digest(const wire::Hello& connector, const wire::Hello& acceptor) {
  Bytes transcript;
  ByteWriter out(transcript);
  out.put(ByteView(wire::encode(connector)));
  out.put(ByteView(wire::encode(acceptor)));
  return crypto::hmac_sha256(as_bytes(kHellos), transcript);
}

}  // namespace

Handshake::Handshake(Setup setup) : setup_(std::move(setup)) {
  setup_.hello.oldest = setup_.versions.oldest;
  setup_.hello.newest = setup_.versions.newest;
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
  if (auto* introduction = std::get_if<wire::Introduction>(&message);
      introduction && stage_ == Stage::kIntroduction) {
    return take_introduction(std::move(*introduction));
  }
  Step step;
  if (const auto* wish = std::get_if<wire::EncryptionWish>(&message); wish && take_wish(*wish)) return step;
  if (const auto* bye = std::get_if<wire::Bye>(&message); bye && stage_ != Stage::kDone) {
    const bool believed = stage_ == Stage::kIntroduction && !in_clear();
    const auto code = believed ? ErrorCode::kPermissionDenied : ErrorCode::kUnavailable;
    step.error = Error{code, fmt::format("the peer refused: {}", bye->reason)};
  } else {
    step.error =
        Error{ErrorCode::kProtocol, fmt::format("a {} came instead of {}", wire::name(message), awaits())};
  }
  return step;
}

std::optional<Error> Handshake::mismatch(const wire::Hello& hello) const {
  if (!wire::common(setup_.versions, hello.versions())) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("protocol versions differ: this side speaks {}, the peer {}",
                             show(setup_.versions), show(hello.versions()))};
  }
  if (hello.proof != setup_.hello.proof) {
    return Error{
        ErrorCode::kPermissionDenied,
        fmt::format("both sides must have a key, or both a certificate, or neither anything: this side "
                    "has {}, the peer has {}",
                    show(setup_.hello.proof), show(hello.proof))};
  }
  if (hello.nonce == setup_.hello.nonce) {
    return Error{ErrorCode::kProtocol, "this side's own hello came back"};
  }
  return std::nullopt;
}

Handshake::Step Handshake::take_hello(const wire::Hello& hello) {
  Step step;
  const auto version = wire::common(setup_.versions, hello.versions());
  if (version && !known(hello.proof)) {
    step.error = Error{ErrorCode::kProtocol, "the peer's hello does not say how it proves itself"};
    return step;
  }
  if (setup_.role == Role::kAcceptor) step.send.emplace_back(setup_.hello);
  if (auto error = mismatch(hello)) {
    Step end = give_up(std::move(*error));
    end.send.insert(end.send.begin(), step.send.begin(), step.send.end());
    return end;
  }
  theirs_ = hello;
  version_ = *version;
  const bool connector = setup_.role == Role::kConnector;
  hellos_ = connector ? digest(setup_.hello, theirs_) : digest(theirs_, setup_.hello);
  if (in_clear()) {
    if (connector) introduce(step);
    stage_ = Stage::kIntroduction;
  } else {
    step.seal = true;
    stage_ = Stage::kSeal;
  }
  return step;
}

Handshake::Step Handshake::sealed(std::string identity) {
  identity_ = std::move(identity);
  stage_ = Stage::kIntroduction;
  if (!allowed()) {
    return give_up(Error{ErrorCode::kPermissionDenied,
                         identity_.empty()
                             ? std::string("a key without a name is not among those that may connect here")
                             : fmt::format("'{}' is not among those that may connect here", identity_)});
  }
  Step step;
  setup_.introduction.hellos = hellos_;
  if (setup_.role == Role::kConnector) introduce(step);
  return step;
}

/// A key names whoever dials; a certificate names both.
bool Handshake::allowed() const {
  const bool key = setup_.hello.proof == static_cast<std::uint8_t>(wire::Proof::kKey);
  if (setup_.allow.empty() || (key && setup_.role == Role::kConnector)) return true;
  return std::ranges::find(setup_.allow, identity_) != setup_.allow.end();
}

// The acceptor introduces itself last: a connector whose handshake is done has been taken, and one that was
// closed for want of room before that can dial again.
Handshake::Step Handshake::take_introduction(wire::Introduction introduction) {
  if (!in_clear() && introduction.hellos != hellos_) {
    return give_up(Error{ErrorCode::kPermissionDenied,
                         "the peer has not heard what this side said first: somebody changes it on the way"});
  }
  if (introduction.note.size() > kMaxNoteBytes) {
    return give_up(Error{ErrorCode::kProtocol, fmt::format("the peer's note has {} bytes, more than {}",
                                                           introduction.note.size(), kMaxNoteBytes)});
  }
  if (auto error = clash()) return give_up(std::move(*error));
  peer_introduction_ = std::move(introduction);
  stage_ = Stage::kDone;
  Step step;
  if (setup_.role == Role::kAcceptor) introduce(step);
  return step;
}

/// What each side wishes of the encryption of data may rule the other one out.
std::optional<Error> Handshake::clash() const {
  const Encryption mine = setup_.encryption;
  const Encryption theirs = their_wish_.value_or(Encryption::kOff);
  if (mine == Encryption::kRequire && theirs == Encryption::kOff) {
    return Error{ErrorCode::kPermissionDenied,
                 "this side requires encrypted data (UCCL_P2P_TLS=require), and the peer has it off"};
  }
  if (theirs == Encryption::kRequire && mine == Encryption::kOff) {
    return Error{ErrorCode::kPermissionDenied,
                 "the peer requires encrypted data, and this side has it off (UCCL_P2P_TLS=off)"};
  }
  return std::nullopt;
}

bool Handshake::take_wish(const wire::EncryptionWish& wish) {
  const Encryption theirs{wish.encryption};
  const bool known = theirs == Encryption::kOn || theirs == Encryption::kRequire;
  if (stage_ != Stage::kIntroduction || in_clear() || their_wish_ || !known) return false;
  their_wish_ = theirs;
  return true;
}

bool Handshake::encrypts() const {
  return !in_clear() && (setup_.encryption != Encryption::kOff || their_wish_);
}

void Handshake::introduce(Step& step) const {
  if (!in_clear() && setup_.encryption != Encryption::kOff) {
    step.send.emplace_back(wire::EncryptionWish{static_cast<std::uint8_t>(setup_.encryption)});
  }
  step.send.emplace_back(setup_.introduction);
}

Handshake::Step Handshake::give_up(Error error) const {
  Step step;
  step.send.emplace_back(wire::Bye{error.message});
  step.error = std::move(error);
  return step;
}

std::size_t Handshake::max_frame_bytes() const {
  return stage_ == Stage::kHello || stage_ == Stage::kSeal ? wire::kStrangerFrameBytes : wire::kMaxFrameBytes;
}

std::string_view Handshake::awaits() const {
  switch (stage_) {
    case Stage::kHello: return "the peer's hello";
    case Stage::kSeal: return "the peer's part of the TLS handshake";
    case Stage::kIntroduction: return "the peer's introduction";
    case Stage::kDone: break;
  }
  return "nothing more";
}

}  // namespace p2p::engine
