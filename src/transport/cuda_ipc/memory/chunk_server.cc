// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/memory/chunk_server.h"

#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/memory_guard.h"
#include "transport/cuda_ipc/memory/chunk_protocol.h"

namespace p2p::cuda_ipc {
namespace {

// Callers at once; more push the one out that has been here longest. They may be strangers that say nothing.
constexpr std::ptrdiff_t kMaxCallers = 64;

// What it sends is small and asked for, so that there is room; who does not read is dropped.
constexpr socket::Deadline kNow{};

}  // namespace

std::string name_of(const Token& server) { return socket::local_name("p2p-cuda-ipc-", server); }

crypto::MutualProof proof_of(const Ticket& ticket, const Token& owners_challenge,
                             const Token& importers_challenge) {
  Bytes number;
  ByteWriter(number).put(ticket.number);
  crypto::MutualProof proof("p2p cuda_ipc chunks", ticket.secret);
  proof.bind(number).bind(owners_challenge).bind(importers_challenge);
  return proof;
}

ChunkServer::~ChunkServer() {
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    thread = std::move(thread_);
  }
  if (!thread.joinable()) return;
  ::eventfd_write(stop_.get(), 1);
  thread.join();
}

Result<Ticket> ChunkServer::offer(std::vector<cuda::Chunk> chunks, Access access) {
  auto offered = std::make_shared<Offered>();
  offered->chunks = std::move(chunks);
  offered->access = std::move(access);
  const MutexLock lock(mutex_);
  return add(std::move(offered));
}

Result<Ticket> ChunkServer::offer_lease(int device) {
  if (!make_lease_) return fail(ErrorCode::kUnavailable, "nothing is lent here");
  const MutexLock lock(mutex_);
  if (const auto known = leases_.find(device); known != leases_.end()) return known->second;
  auto offered = std::make_shared<Offered>();
  offered->leases_of = device;
  auto made = add(std::move(offered));
  if (made) leases_.emplace(device, *made);
  return made;
}

Result<Ticket> ChunkServer::add(std::shared_ptr<Offered> offered) {
  Ticket& ticket = offered->ticket;
  if (const Status drawn = crypto::random_bytes(ticket.secret); !drawn) return tl::unexpected(drawn.error());
  if (!thread_.joinable()) {
    if (const Status started = start(); !started) return tl::unexpected(started.error());
  }
  ticket.server = name_;
  ticket.number = ++last_ticket_;
  offers_.emplace(ticket.number, offered);
  return ticket;
}

void ChunkServer::withdraw(const Ticket& ticket) {
  const MutexLock lock(mutex_);
  offers_.erase(ticket.number);
}

std::shared_ptr<const ChunkServer::Offered> ChunkServer::find(std::uint64_t ticket) {
  const MutexLock lock(mutex_);
  const auto found = offers_.find(ticket);
  return found == offers_.end() ? nullptr : found->second;
}

Status ChunkServer::start() {
  if (const Status drawn = crypto::random_bytes(name_); !drawn) return drawn;
  auto listener = socket::listen_locally(name_of(name_), place_);
  if (!listener) return tl::unexpected(listener.error());
  listener_ = *std::move(listener);
  stop_ = UniqueFd::of(::eventfd, 0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (!stop_) return tl::unexpected(system_error("offer device memory: eventfd"));
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return fail(ErrorCode::kSystem, "offer device memory: start a thread: {}", error.what());
  }
  ::pthread_setname_np(thread_.native_handle(), "p2p-chunks");
  return {};
}

void ChunkServer::run() {
  std::list<Caller> callers;
  std::vector<pollfd> polled(2);
  for (;;) {
    polled.assign({{stop_.get(), POLLIN, 0}, {listener_.socket().get(), POLLIN, 0}});
    for (const Caller& caller : callers) polled.push_back({caller.socket.get(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) {
      log(LogLevel::kWarning, "cuda_ipc offers no device memory any more: {}", system_error("poll").message);
      return;
    }
    if (polled[0].revents != 0) return;
    std::size_t i = 2;
    for (auto caller = callers.begin(); caller != callers.end(); ++i) {
      bool stays = false;
      guard_memory("a request for device memory", [&] { stays = polled[i].revents == 0 || serve(*caller); });
      caller = stays ? std::next(caller) : callers.erase(caller);
    }
    if (polled[1].revents == 0) continue;
    guard_memory("a caller for device memory", [&] { greet_callers(callers, polled); });
  }
}

// Makes room in `polled` for each, so that to look at them takes no memory.
void ChunkServer::greet_callers(std::list<Caller>& callers, std::vector<pollfd>& polled) {
  while (UniqueFd socket = socket::accept_local(listener_)) {
    Caller caller{.socket = std::move(socket)};
    if (!crypto::random_bytes(caller.challenge)) continue;
    if (!socket::send_packet(caller.socket, caller.challenge, {}, kNow)) continue;
    const auto waits = [](const Caller& each) { return each.lease == nullptr; };
    if (std::ranges::count_if(callers, waits) == kMaxCallers) {
      callers.erase(std::ranges::find_if(callers, waits));
    }
    polled.reserve(2 + callers.size() + 1);
    callers.push_back(std::move(caller));
  }
}

// False: it is dropped.
bool ChunkServer::serve(Caller& caller) {
  const auto request = socket::receive_packet(caller.socket, kMaxPacket, 0, kNow);
  if (caller.lease) return false;  // there is nothing more to be said but the end
  if (!request) return false;
  if (!caller.wants) return recognise(caller, request->bytes);
  if (request->bytes.size() != 1 || request->bytes.front() != std::byte{kNext}) return false;
  return send_batch(caller);
}

bool ChunkServer::recognise(Caller& caller, ByteView request) {
  ByteReader in(request);
  const auto ticket = in.get<std::uint64_t>();
  Token challenge{};
  const ByteView drawn = in.take(challenge.size());
  const ByteView proof = in.take(in.left());
  if (!in.ok()) return false;
  std::ranges::copy(drawn, challenge.begin());
  const auto offered = find(ticket);
  if (!offered) {
    return refuse(caller, {ErrorCode::kNotFound, "its owner has taken the memory back"});
  }
  if (!proof_of(offered->ticket, caller.challenge, challenge).holds(Role::kConnector, proof)) {
    return false;
  }
  caller.wants = offered;
  Bytes answer{std::byte{kServed}};
  ByteWriter(answer).put(
      ByteView(proof_of(offered->ticket, caller.challenge, challenge).by(Role::kAcceptor)));
  return socket::send_packet(caller.socket, answer, {}, kNow).has_value();
}

bool ChunkServer::send_batch(Caller& caller) {
  if (caller.wants->leases_of >= 0) return send_lease(caller);
  const auto& chunks = caller.wants->chunks;
  if (caller.next == chunks.size()) return false;
  const auto access = caller.wants->access();
  if (!access) return refuse(caller, access.error());
  const std::size_t count = std::min(kChunksOfABatch, chunks.size() - caller.next);
  Bytes answer{std::byte{kServed}};
  ByteWriter out(answer);
  std::vector<UniqueFd> descriptors;
  for (std::size_t i = 0; i < count; ++i) {
    const cuda::Chunk& chunk = chunks[caller.next + i];
    auto exported = export_(chunk);
    if (!exported) return refuse(caller, exported.error());
    descriptors.push_back(std::move(*exported));
    out.put(chunk.size);
  }
  caller.next += count;
  if (const Status sent = socket::send_packet(caller.socket, answer, descriptors, kNow); !sent) {
    return refuse(caller, sent.error());
  }
  caller.kept = std::move(descriptors.back());
  return true;
}

bool ChunkServer::send_lease(Caller& caller) const {
  auto lease = make_lease_(caller.wants->leases_of);
  if (!lease) return refuse(caller, lease.error());
  Bytes answer{std::byte{kServed}};
  ByteWriter(answer).put(ByteView(lease->words));
  if (const Status sent = socket::send_packet(caller.socket, answer, lease->descriptors, kNow); !sent) {
    return refuse(caller, sent.error());
  }
  caller.lease = std::move(lease->kept);
  return true;
}

bool ChunkServer::refuse(const Caller& caller, const Error& error) {
  Bytes answer{std::byte{kRefused}};
  ByteWriter(answer).put(as_bytes(std::string_view(error.message).substr(0, kMaxPacket - 1)));
  static_cast<void>(socket::send_packet(caller.socket, answer, {}, kNow));
  return false;
}

}  // namespace p2p::cuda_ipc
