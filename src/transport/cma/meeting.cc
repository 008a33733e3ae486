// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cma/meeting.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/shared_memory.h"
#include "drivers/crypto/crypto.h"

namespace p2p::cma {
namespace {

// More connections that say nothing than this push the oldest out.
constexpr std::size_t kMaxStrangers = 8;

// Of what the two share where they are in different PID namespaces.
constexpr std::size_t kApartBytes = ring_bytes(2) + 2 * SharedSlots::kBytes;

}  // namespace

Status Meeting::begin() {
  auto host = Host::here(place_);
  if (!host) return tl::unexpected(host.error());
  address_ = {.host = *host, .pid = static_cast<std::uint32_t>(::getpid())};
  mine_.token_address = reinterpret_cast<std::uint64_t>(mine_.token.data());
  if (Status drawn = crypto::random_bytes(mine_.token); !drawn) return drawn;
  if (!accepts()) {
    address_.listener = Address::kTakesRequests;
    return {};
  }
  if (Status drawn = crypto::random_bytes(address_.listener); !drawn) return drawn;
  listener_name_ = address_.listener;
  if (Status opened = move_into(listener_, socket::listen_locally(name_of(listener_name_), place_));
      !opened) {
    return opened;
  }
  return peer_.watch(listener_.socket());
}

Status Meeting::connect(ByteView peer_address) {
  const auto peer = Address::parse(peer_address);
  if (!peer) return tl::unexpected(peer.error());
  if (Status met = address_.host.meets(peer->host); !met) return met;
  peer_.apart = peer->host.pid_namespace != address_.host.pid_namespace;
  if (Status may = check_file_size(kApartBytes); peer_.apart && !may) return may;
  if (accepts()) {
    takes_requests_ = peer_.apart || peer->listener == Address::kTakesRequests;
    return {};
  }
  listener_name_ = peer->listener;
  auto socket = socket::connect_locally(name_of(listener_name_), {}, place_);
  if (Status connected = move_into(peer_.socket, std::move(socket)); !connected) return connected;
  if (Status sent = send_proof(UniqueFd()); !sent) return sent;
  return peer_.watch(peer_.socket);
}

Result<std::optional<Shared>> Meeting::progress() {
  Met met;
  if (!accepts()) {
    if (!peer_.socket) return met;
    met = receive_proof(peer_.socket);
    if (met && !*met && !peer_.socket) {
      return fail(ErrorCode::kPeerGone,
                  "connect with cma: the peer closed, or another answered in its place");
    }
    return met;
  }
  for (std::size_t i = 0; i != strangers_.size() && met && !*met; ++i) met = receive_proof(strangers_[i]);
  if (met && !*met) met = accept_strangers();
  std::erase_if(strangers_, [&](const UniqueFd& fd) { return !fd || !met || *met; });
  return met;
}

// The peer's proof follows its connection at once and is read before room is made for the next, so that
// nobody who comes behind the peer takes its place.
Meeting::Met Meeting::accept_strangers() {
  Met met;
  while (met && !*met) {
    UniqueFd socket = socket::accept_local(listener_);
    if (!socket) break;
    if (!peer_.watch(socket)) continue;
    if (strangers_.size() == kMaxStrangers) strangers_.erase(strangers_.begin());
    strangers_.push_back(std::move(socket));
    met = receive_proof(strangers_.back());
  }
  return met;
}

// Only the peer can end an acceptor's handshake, well or badly: whoever else connects is dropped without a
// word.
Meeting::Met Meeting::receive_proof(UniqueFd& from) {
  Bytes message(MemoryProof::kBytes + 1);
  UniqueFd descriptor;
  const ssize_t size = receive_with_descriptor(from, message, descriptor);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  UniqueFd socket = std::move(from);
  const auto pid = socket::process_at(socket);
  if (size <= 0 || (!pid && !peer_.apart)) return std::nullopt;
  message.resize(static_cast<std::size_t>(size));
  const auto proof = MemoryProof::parse(message, setup_, listener_name_, peer_.apart ? 0 : *pid);
  if (!proof) return std::nullopt;
  peer_.socket = std::move(socket);
  peer_.pid = pid.value_or(0);
  return take_peer(*proof, std::move(descriptor));
}

Result<Shared> Meeting::take_peer(const MemoryProof& proof, UniqueFd rings) {
  peer_.process = socket::watch_process(peer_.socket);
  if (!peer_.process && !peer_.apart) {
    return tl::unexpected(system_error(fmt::format("watch process {}: pidfd_open", peer_.pid)));
  }
  // The peer's socket is open after the pidfd was made, so the pidfd is of the process that opened it.
  if (!peer_.is_alive()) {
    return fail(ErrorCode::kPeerGone, "connect with cma: process {} has ended", peer_.pid);
  }
  const Status access =
      peer_.process ? check_access(peer_.pid, proof) : fail(ErrorCode::kUnavailable, "not seen");
  peer_.reaches = access.has_value();
  if (!peer_.reaches && !peer_.apart) return tl::unexpected(access.error());
  if (const Status watched = peer_.process ? peer_.watch(peer_.process) : Status(); !watched) {
    return tl::unexpected(watched.error());
  }
  // Nothing may fail once an acceptor has sent its proof: the connector serves from then on.
  auto shared = share(std::move(rings));
  if (shared) listener_.reset();
  return shared;
}

// What is shared is the acceptor's, and goes with its proof. An acceptor that does not know of requests has
// one pair of rings.
Result<Shared> Meeting::share(UniqueFd descriptor) {
  const std::size_t more = peer_.apart ? 2 * SharedSlots::kBytes : 0;
  unsigned pairs = !accepts() || takes_requests_ ? 2 : 1;
  auto memory =
      accepts() ? RingMemory::create(descriptor, pairs, more) : RingMemory::open(descriptor, pairs, more);
  if (!memory && !accepts() && !peer_.apart) memory = RingMemory::open(descriptor, pairs = 1);
  if (!memory) return tl::unexpected(memory.error());
  Shared shared{Rings(std::move(*memory), pairs, accepts()), {}};
  if (const Status sent = accepts() ? send_proof(descriptor) : Status(); !sent) {
    return tl::unexpected(sent.error());
  }
  if (peer_.apart) shared.slots = SharedSlots(std::move(descriptor), ring_bytes(2), accepts());
  return shared;
}

Status Meeting::send_proof(const UniqueFd& rings) const {
  const Bytes proof = mine_.serialize(setup_, listener_name_, peer_.apart ? 0 : ::getpid());
  const std::span<const UniqueFd> descriptors(&rings, rings ? 1 : 0);
  return socket::send_packet(peer_.socket, proof, descriptors, std::chrono::steady_clock::now());
}

}  // namespace p2p::cma
