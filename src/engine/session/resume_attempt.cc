// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/resume_attempt.h"

#include <sys/epoll.h>

#include <utility>

#include "base/error.h"
#include "drivers/crypto/crypto.h"
#include "engine/session/handshake.h"
#include "wire/encode.h"

namespace p2p::engine {
namespace {

constexpr std::string_view kOfResume = "p2p resume";
constexpr std::string_view kOfConnector = "p2p resume connector";
constexpr std::string_view kOfAcceptor = "p2p resume acceptor";
constexpr std::string_view kOfTls = "p2p resume TLS";
constexpr std::string_view kKeyName = "resume";

/// What a Resume proves: made by who knows the secret.
std::array<std::byte, 32> proof_of(const std::array<std::byte, 32>& secret, wire::Resume resume) {
  resume.proof = {};
  Bytes said;
  ByteWriter out(said);
  out.put(as_bytes(kOfResume));
  out.put(ByteView(wire::encode(resume)));
  return crypto::hmac_sha256(secret, said);
}

}  // namespace

ResumeAttempt::ResumeAttempt(Reactor& reactor, const Terms& terms, UniqueFd socket)
    : reactor_(reactor),
      terms_(terms),
      socket_(std::make_unique<ControlSocket>(std::move(socket))),
      reader_(wire::kStrangerFrameBytes) {}

void ResumeAttempt::start(std::uint32_t attempt, std::uint64_t handled, Done done) {
  done_ = std::move(done);
  handled_ = handled;
  resume_.token = terms_.token;
  resume_.attempt = attempt;
  if (Status begun = begin(); !begun) {
    reactor_.post(
        [self = shared_from_this(), error = begun.error()] { self->finish(tl::unexpected(error)); });
  }
}

Status ResumeAttempt::begin() {
  const bool dials = terms_.role == Role::kConnector;
  Status status = socket_->prepare(terms_.hung);
  if (status) status = crypto::random_bytes(dials ? resume_.nonce : answer_.nonce);
  if (!status) return status;
  if (dials) {
    resume_.proof = proof_of(terms_.secret, resume_);
    socket_->push(wire::encode(resume_));
  }
  if (status = flush(); !status) return status;
  return reactor_.watch(socket_->fd(), EPOLLIN | EPOLLRDHUP,
                        [self = shared_from_this()](std::uint32_t events) { self->on_events(events); });
}

void ResumeAttempt::on_events(std::uint32_t events) {
  Status status;
  if ((events & EPOLLOUT) != 0) status = flush();
  if (status && (events & ~std::uint32_t{EPOLLOUT}) != 0) status = receive();
  if (!status) return finish(tl::unexpected(status.error()));
  if (proven_) finish(std::move(*proven_));
}

/// One buffer: who has said nothing yet that proves anything gets no more of a turn.
Status ResumeAttempt::receive() {
  const auto got = socket_->receive(reader_);
  if (!got) return tl::unexpected(got.error());
  if (sealing_) {
    if (Status sealed = look_at_tls(); !sealed) return sealed;
  }
  while (!proven_) {
    auto message = reader_.next();
    if (!message) return tl::unexpected(message.error());
    if (!*message) break;
    if (Status taken = take(std::move(**message)); !taken) return taken;
  }
  if (got->end && !proven_) return fail(ErrorCode::kPeerGone, "the peer closed the connection");
  return flush();
}

Status ResumeAttempt::take(wire::Message message) {
  const bool dials = terms_.role == Role::kConnector;
  if (const auto* resume = std::get_if<wire::Resume>(&message); resume && !dials && !agreed_) {
    return take_hello(*resume);
  }
  if (const auto* answer = std::get_if<wire::ResumeAnswer>(&message); answer && dials && !agreed_) {
    return take_answer(*answer);
  }
  if (const auto* resumed = std::get_if<wire::Resumed>(&message); resumed && agreed_ && !sealing_) {
    return take_proof(*resumed);
  }
  return fail(ErrorCode::kProtocol, "a {} was not due", wire::name(message));
}

Status ResumeAttempt::check(const Terms& terms, const wire::Resume& resume) {
  if (!crypto::equal(resume.token, terms.token)) {
    return fail(ErrorCode::kPermissionDenied, "another session is meant");
  }
  if (crypto::equal(resume.proof, proof_of(terms.secret, resume))) return {};
  return fail(ErrorCode::kPermissionDenied, "whoever names the session does not have its secret");
}

Result<std::uint32_t> ResumeAttempt::peek(const Terms& terms, int socket) {
  std::array<std::byte, wire::Resume::kFrameBytes> frame{};
  const auto peeked = socket::try_peek(socket, frame);
  if (!peeked) return tl::unexpected(peeked.error());
  wire::FrameReader reader(frame.size());
  reader.feed(ByteView(frame).first(peeked->bytes));
  const auto message = reader.next();
  if (!message) return tl::unexpected(message.error());
  const auto* resume = *message ? std::get_if<wire::Resume>(&**message) : nullptr;
  if (resume == nullptr) return fail(ErrorCode::kProtocol, "no Resume");
  if (Status checked = check(terms, *resume); !checked) return tl::unexpected(checked.error());
  return resume->attempt;
}

Status ResumeAttempt::take_hello(const wire::Resume& resume) {
  if (Status checked = check(terms_, resume); !checked) return checked;
  resume_ = resume;
  answer_.known = 1;
  socket_->push(wire::encode(answer_));
  return agree();
}

Status ResumeAttempt::take_answer(const wire::ResumeAnswer& answer) {
  if (answer.known == 0) return fail(ErrorCode::kNotFound, "its port does not know this session any more");
  answer_ = answer;
  if (Status agreed = agree(); !agreed || terms_.sealed) return agreed;
  socket_->push(wire::encode(wire::Resumed{digest(kOfConnector), handled_}));
  return {};
}

/// Both nonces are known: TLS begins, with a key that nobody else can make and that is of this attempt alone.
Status ResumeAttempt::agree() {
  agreed_ = true;
  if (!terms_.sealed) return {};
  if (reader_.buffered() != 0) return fail(ErrorCode::kProtocol, "something other than TLS follows");
  const auto secret = digest(kOfTls);
  auto credentials =
      crypto::Credentials::of_keys({{std::string(kKeyName), Bytes(secret.begin(), secret.end())}});
  if (!credentials) return tl::unexpected(credentials.error());
  sealing_ = true;
  const bool dials = terms_.role == Role::kConnector;
  return socket_->start_tls(std::move(*credentials),
                            dials ? crypto::Tls::Side::kDials : crypto::Tls::Side::kAccepts);
}

Status ResumeAttempt::look_at_tls() {
  const auto sealed = socket_->sealed({});
  if (!sealed) return tl::unexpected(sealed.error());
  if (!*sealed) return {};
  sealing_ = false;
  if (terms_.role == Role::kConnector) {
    socket_->push(wire::encode(wire::Resumed{digest(kOfConnector), handled_}));
  }
  return {};
}

Status ResumeAttempt::take_proof(const wire::Resumed& resumed) {
  const bool dials = terms_.role == Role::kConnector;
  if (!crypto::equal(resumed.proof, digest(dials ? kOfAcceptor : kOfConnector))) {
    return fail(ErrorCode::kPermissionDenied, "the peer does not have the session's secret");
  }
  Proven proven;
  proven.attempt = resume_.attempt;
  proven.handled = resumed.messages;
  if (!dials) proven.answer.proof = digest(kOfAcceptor);
  proven_ = std::move(proven);
  return {};
}

Status ResumeAttempt::flush() {
  const auto sent = socket_->flush();
  if (!sent) return tl::unexpected(sent.error());
  if (!done_) return {};
  reactor_.change(socket_->fd(), EPOLLIN | EPOLLRDHUP | (socket_->idle() ? 0U : std::uint32_t{EPOLLOUT}));
  return {};
}

std::array<std::byte, 32> ResumeAttempt::digest(std::string_view label) const {
  Bytes said;
  ByteWriter out(said);
  out.put(as_bytes(label));
  out.put(ByteView(wire::encode(resume_)));
  out.put(ByteView(answer_.nonce));
  return crypto::hmac_sha256(terms_.secret, said);
}

void ResumeAttempt::finish(Result<Proven> outcome) {
  const auto self = shared_from_this();
  const Done done = std::exchange(done_, nullptr);
  if (!done) return;
  reactor_.unwatch(socket_->fd());
  if (outcome) {
    outcome->socket = std::move(socket_);
    outcome->reader = std::move(reader_);
  }
  done(std::move(outcome));
}

void ResumeAttempt::stop() {
  if (!std::exchange(done_, nullptr)) return;
  reactor_.unwatch(socket_->fd());
  socket_->discard_at_close();  // to a peer that has taken it already, a break and not the session's end
}

}  // namespace p2p::engine
