// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/memory/chunk_fetch.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/peer_text.h"
#include "drivers/crypto/crypto.h"
#include "drivers/socket/local_socket.h"
#include "transport/cuda_ipc/memory/chunk_protocol.h"

namespace p2p::cuda_ipc {
namespace {

// Asked for ahead, so that the owner exports while this side imports.
constexpr std::size_t kAhead = 4;

socket::Deadline soon() { return std::chrono::steady_clock::now() + kPacketTime; }

tl::unexpected<Error> unreadable() {
  return fail(ErrorCode::kProtocol, "fetch a peer's device memory: an answer that cannot be read");
}

// The answer without its first byte, if it is no refusal.
Result<socket::Packet> answer_from(const UniqueFd& owner, std::size_t descriptors) {
  auto packet = socket::receive_packet(owner, kMaxPacket, descriptors, soon());
  if (!packet) return packet;
  if (packet->bytes.empty()) return unreadable();
  const std::byte kind = packet->bytes.front();
  packet->bytes.erase(packet->bytes.begin());
  if (kind == std::byte{kServed}) return packet;
  if (kind != std::byte{kRefused}) return unreadable();
  return fail(ErrorCode::kNotFound, "fetch a peer's device memory: the owner says: {}",
              PeerText(packet->bytes));
}

// The owner's socket, once each side has shown that it knows the secret.
Result<UniqueFd> call_owner(const Ticket& ticket, const socket::Place& place) {
  auto owner = socket::connect_locally(name_of(ticket.server), {}, place);
  if (!owner) return owner;
  const auto greeting = socket::receive_packet(*owner, sizeof(Token), 0, soon());
  if (!greeting) return tl::unexpected(greeting.error());
  Token theirs{};
  if (greeting->bytes.size() != theirs.size()) return unreadable();
  std::ranges::copy(greeting->bytes, theirs.begin());
  Token mine{};
  if (const Status drawn = crypto::random_bytes(mine); !drawn) return tl::unexpected(drawn.error());
  const crypto::MutualProof proof = proof_of(ticket, theirs, mine);
  Bytes request;
  ByteWriter out(request);
  out.put(ticket.number);
  out.put(ByteView(mine));
  out.put(ByteView(proof.by(Role::kConnector)));
  if (const Status sent = socket::send_packet(*owner, request, {}, soon()); !sent) {
    return tl::unexpected(sent.error());
  }
  const auto answer = answer_from(*owner, 0);
  if (!answer) return tl::unexpected(answer.error());
  if (proof.holds(Role::kAcceptor, answer->bytes)) return owner;
  return fail(ErrorCode::kPermissionDenied, "fetch a peer's device memory: another process answered");
}

// Who has closed may have said why before: that is still to be read.
Status ask_for_next(const UniqueFd& owner) {
  constexpr std::array kRequest{std::byte{kNext}};
  const Status sent = socket::send_packet(owner, kRequest, {}, soon());
  return !sent && sent.error().code == ErrorCode::kPeerGone ? Status() : sent;
}

}  // namespace

Status fetch_chunks(const ChunkedMemory& memory,
                    const std::function<Status(const UniqueFd& chunk, std::uint64_t size)>& take,
                    const socket::Place& place) {
  const auto owner = call_owner(memory.ticket, place);
  if (!owner) return tl::unexpected(owner.error());
  const std::size_t batches = (memory.count + kChunksOfABatch - 1) / kChunksOfABatch;
  std::uint64_t left = memory.size;
  for (std::size_t asked = 0, got = 0; got < batches; ++got) {
    for (; asked < batches && asked < got + kAhead; ++asked) {
      if (const Status sent = ask_for_next(*owner); !sent) return sent;
    }
    const std::size_t count = std::min(kChunksOfABatch, memory.count - got * kChunksOfABatch);
    const auto batch = answer_from(*owner, count);
    if (!batch) return tl::unexpected(batch.error());
    if (batch->descriptors.size() != count) return unreadable();
    ByteReader in(batch->bytes);
    for (const UniqueFd& chunk : batch->descriptors) {
      const auto size = in.get<std::uint64_t>();
      if (!in.ok() || size == 0 || size > left) return unreadable();
      left -= size;
      if (const Status taken = take(chunk, size); !taken) return taken;
    }
    if (in.left() != 0) return unreadable();
  }
  if (left != 0) return unreadable();
  return {};
}

Result<Borrowed> borrow(const Ticket& ticket, std::size_t descriptors, const socket::Place& place) {
  auto owner = call_owner(ticket, place);
  if (!owner) return tl::unexpected(std::move(owner.error()));
  if (const Status asked = ask_for_next(*owner); !asked) return tl::unexpected(asked.error());
  auto answer = answer_from(*owner, descriptors);
  if (!answer) return tl::unexpected(std::move(answer.error()));
  if (answer->descriptors.size() != descriptors) return unreadable();
  return Borrowed{std::move(*owner), std::move(answer->descriptors), std::move(answer->bytes)};
}

}  // namespace p2p::cuda_ipc
