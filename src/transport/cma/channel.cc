// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cma/channel.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "base/error.h"
#include "drivers/crypto/crypto.h"
#include "transport/process_end.h"

namespace p2p::cma {

namespace {

// Copies are made by the caller of `post`; a deeper queue would keep a batch from the other worker.
constexpr std::size_t kMaxUnreported = 4;

// More connections that say nothing than this push the oldest out.
constexpr std::size_t kMaxStrangers = 8;

// A turn looks at the ring, which costs nothing, and at the peer and its wake-ups, system calls, only so
// often: the peer's end wakes whoever sleeps until it was seen.
constexpr unsigned kTurnsALook = 64;

// Taken in one go; then others have their turn.
constexpr int kBlocksATurn = 64;

// Batches: several times what a peer's channel has slots for.
constexpr ServedCopies::Limits kServed{.batches = 64, .segments = kMaxBatchSegments, .bytes = kMaxBatchBytes};

// The system checks no keys: a range that the owner did not name must not be touched.
Status check_bounds(const Batch& batch) {
  Status status;
  batch.for_each_piece([&](const Segment& piece) {
    const RegionInfo& region = piece.key->info();
    if (!status || region.contains(piece.remote, piece.size)) return;
    status = fail(ErrorCode::kOutOfRange, "access {} bytes at {:#x} of region {}: it has {} bytes at {}",
                  piece.size, piece.remote, static_cast<std::uint32_t>(region.id), region.size,
                  static_cast<const void*>(region.base));
  });
  return status;
}

}  // namespace

CmaChannel::CmaChannel(const ChannelSetup& setup, std::shared_ptr<device::Staging> staging,
                       PeerAccess regions)
    : setup_(setup), served_(std::move(regions), kServed), staging_(std::move(staging)) {}

Result<std::unique_ptr<Channel>> CmaChannel::open(const ChannelSetup& setup,
                                                  std::shared_ptr<device::Staging> staging,
                                                  PeerAccess regions, const socket::Place& place) {
  auto host = Host::here(place);
  if (!host) return tl::unexpected(host.error());
  std::unique_ptr<CmaChannel> channel(new CmaChannel(setup, std::move(staging), std::move(regions)));
  channel->place_ = place;
  channel->address_ = {.host = *host, .pid = static_cast<std::uint32_t>(::getpid())};
  channel->mine_ = std::make_unique<MemoryProof>();
  MemoryProof& proof = *channel->mine_;
  proof.token_address = reinterpret_cast<std::uint64_t>(proof.token.data());
  if (const Status drawn = crypto::random_bytes(proof.token); !drawn) return tl::unexpected(drawn.error());

  channel->events_ = UniqueFd::of(::epoll_create1, EPOLL_CLOEXEC);
  if (!channel->events_) return tl::unexpected(system_error("open a cma channel: epoll_create1"));
  if (setup.role == Role::kAcceptor) {
    Token& name = channel->address_.listener;
    if (const Status drawn = crypto::random_bytes(name); !drawn) return tl::unexpected(drawn.error());
    auto listener = socket::listen_locally(name_of(name), place);
    if (!listener) return tl::unexpected(listener.error());
    channel->listener_ = *std::move(listener);
    channel->listener_name_ = name;
    if (const Status watched = channel->watch(channel->listener_.socket()); !watched) {
      return tl::unexpected(watched.error());
    }
  } else {
    channel->address_.listener = Address::kTakesRequests;
  }
  return channel;
}

Status CmaChannel::connect(std::span<const std::byte> peer_address) {
  const auto peer = Address::parse(peer_address);
  if (!peer) return tl::unexpected(peer.error());
  if (const Status met = address_.host.meets(peer->host); !met) return met;
  apart_ = peer->host.pid_namespace != address_.host.pid_namespace;
  if (const Status may = SharedSlots::check_limit(ring_bytes(2)); apart_ && !may) return may;
  if (setup_.role == Role::kAcceptor) {
    has_messages_ = apart_ || peer->listener == Address::kTakesRequests;
    return {};
  }
  listener_name_ = peer->listener;
  auto socket = socket::connect_locally(name_of(listener_name_), {}, place_);
  if (!socket) return tl::unexpected(socket.error());
  socket_ = *std::move(socket);
  if (const Status sent = send_proof(UniqueFd()); !sent) return sent;
  return watch(socket_);
}

Status CmaChannel::watch(const UniqueFd& fd) const {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd.get()}};
  if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd.get(), &event) == 0) return {};
  return tl::unexpected(system_error("watch a cma peer: epoll_ctl"));
}

bool CmaChannel::shake_hands() {
  if (setup_.role == Role::kAcceptor) {
    for (std::size_t i = 0; i < strangers_.size() && state_ == ChannelState::kConnecting; ++i) {
      receive_proof(strangers_[i]);
    }
    accept_strangers();
    std::erase_if(strangers_, [this](const auto& fd) { return !fd || state_ != ChannelState::kConnecting; });
  } else if (socket_) {
    receive_proof(socket_);
    if (!socket_ && state_ == ChannelState::kConnecting) {
      fail_with(
          {ErrorCode::kPeerGone, "connect with cma: the peer closed, or another answered in its place"});
    }
  }
  return state_ != ChannelState::kConnecting;
}

// The peer's proof follows its connection at once and is read before room is made for the next, so that
// nobody who comes behind the peer takes its place.
void CmaChannel::accept_strangers() {
  while (state_ == ChannelState::kConnecting) {
    UniqueFd socket = socket::accept_local(listener_);
    if (!socket) return;
    if (!watch(socket)) continue;
    if (strangers_.size() == kMaxStrangers) strangers_.erase(strangers_.begin());
    strangers_.push_back(std::move(socket));
    receive_proof(strangers_.back());
  }
}

// Only the peer can end an acceptor's handshake, well or badly: whoever else connects is dropped without a
// word.
void CmaChannel::receive_proof(UniqueFd& from) {
  Bytes message(MemoryProof::kBytes + 1);
  UniqueFd descriptor;
  const ssize_t size = receive_with_descriptor(from, message, descriptor);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  UniqueFd socket = std::move(from);
  const auto pid = socket::process_at(socket);
  if (size <= 0 || (!pid && !apart_)) return;
  message.resize(static_cast<std::size_t>(size));
  const auto proof = MemoryProof::parse(message, setup_, listener_name_, apart_ ? 0 : *pid);
  if (!proof) return;
  socket_ = std::move(socket);
  pid_ = pid.value_or(0);
  ring_descriptor_ = std::move(descriptor);
  if (const Status taken = take_peer(*proof); !taken) fail_with(taken.error());
}

Status CmaChannel::take_peer(const MemoryProof& proof) {
  process_ = socket::watch_process(socket_);
  if (!process_ && !apart_) {
    return tl::unexpected(system_error(fmt::format("watch process {}: pidfd_open", pid_)));
  }
  // The peer's socket is open after the pidfd was made, so the pidfd is of the process that opened it.
  if (!peer_is_alive()) return fail(ErrorCode::kPeerGone, "connect with cma: process {} has ended", pid_);
  const Status access = process_ ? check_access(pid_, proof) : fail(ErrorCode::kUnavailable, "not seen");
  reaches_ = access.has_value();
  if (!reaches_ && !apart_) return access;
  if (const Status watched = process_ ? watch(process_) : Status(); !watched) return watched;
  // Nothing may fail once an acceptor has sent its proof: the connector serves from then on.
  if (const Status shared = share_ring(); !shared) return shared;
  listener_.reset();
  state_ = ChannelState::kReady;
  return {};
}

// The acceptor's, which goes with its proof. A second pair of rings is for requests and their outcomes; an
// acceptor that does not know of them has one pair.
Status CmaChannel::share_ring() {
  UniqueFd descriptor = std::move(ring_descriptor_);
  const bool mine = setup_.role == Role::kAcceptor;
  const std::size_t more = apart_ ? 2 * SharedSlots::kBytes : 0;
  auto memory = mine ? RingMemory::create(descriptor, has_messages_ ? 2 : 1, more)
                     : RingMemory::open(descriptor, 2, more);
  if (!mine) {
    has_messages_ = memory.has_value();
    if (!memory && !apart_) memory = RingMemory::open(descriptor);
  }
  if (!memory) return tl::unexpected(memory.error());
  ring_ = std::move(*memory);
  writer_ = RingWriter(ring_.direction(mine ? 0 : 1));
  reader_ = RingReader(ring_.direction(mine ? 1 : 0));
  reader_.arm_events();  // whatever the peer did to it: this side looks before it sleeps
  if (has_messages_) {
    message_writer_ = RingWriter(ring_.direction(mine ? 0 : 1, 1));
    message_reader_ = RingReader(ring_.direction(mine ? 1 : 0, 1));
    message_reader_.arm_events();
  }
  if (apart_) slots_ = SharedSlots(std::move(descriptor), ring_bytes(2), mine);
  return mine ? send_proof(apart_ ? slots_.file() : descriptor) : Status();  // NOLINT(*-use-after-move)
}

Status CmaChannel::send_proof(const UniqueFd& ring) const {
  const Bytes proof = mine_->serialize(setup_, listener_name_, apart_ ? 0 : ::getpid());
  const std::span<const UniqueFd> descriptors(&ring, ring ? 1 : 0);
  return socket::send_packet(socket_, proof, descriptors, std::chrono::steady_clock::now());
}

// The socket hangs up only at its end: the peer closed its channel, died, or became another program.
bool CmaChannel::peer_is_alive() const { return is_open(process_, socket_); }

bool CmaChannel::say(std::span<const std::byte> block) {
  if (state_ != ChannelState::kReady || closing_) return false;
  const bool written = write(writer_, block);
  fail_if_lost();
  return written;
}

// False: there is no room.
bool CmaChannel::write(RingWriter& ring, ByteView block) {
  const auto written = ring.write(block);
  if (!written) breach_ = written.error();
  if (!written || !*written) return false;
  // A full socket holds wake-ups enough.
  if (ring.wake_due()) ::send(socket_.get(), "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  return true;
}

bool CmaChannel::take_words() {
  for (int taken = 0; taken != kBlocksATurn; ++taken) {
    const auto read = reader_.read(block_);
    if (!read) breach_ = read.error();
    if (!read || !*read) return taken != 0;
    if (setup_.messages != nullptr) setup_.messages->take(block_);
  }
  return true;
}

bool CmaChannel::enter_polling() {
  if (state_ != ChannelState::kReady || closing_) return false;
  reader_.enter_polling();
  if (has_messages_) message_reader_.enter_polling();
  return reader_.wakes() + message_reader_.wakes() == 0;
}

// Wake-ups are taken off the socket here alone: until then it tells whoever sleeps on it that there was one.
// Now and then more are looked for than can be there, so that a peer which sends them for nothing is no
// burden.
bool CmaChannel::arm_events() {
  if (state_ != ChannelState::kReady || closing_) return true;
  const bool woken = reader_.wakes() + message_reader_.wakes() != 0;
  if (woken || arms_++ % kTurnsALook == 0) take_wakes();
  const bool quiet = reader_.arm_events() && (!has_messages_ || message_reader_.arm_events());
  if (!quiet) enter_polling();  // nobody is to wake who looks
  return quiet;
}

void CmaChannel::take_wakes() {
  std::array<std::byte, 8> wakes;
  for (int i = 0; i != kBlocksATurn; ++i) {
    const ssize_t taken = ::recv(socket_.get(), wakes.data(), wakes.size(), MSG_DONTWAIT);
    if (taken <= 0) return;
    // One is as good as another.
    const auto count = static_cast<std::uint64_t>(taken);
    const std::uint64_t for_words = std::min(count, reader_.wakes());
    reader_.note_wakes(for_words);
    message_reader_.note_wakes(count - for_words);
  }
}

bool CmaChannel::post(const Batch& batch) {
  if (state_ != ChannelState::kReady || closing_ || done_.size() >= kMaxUnreported) return false;
  bool taken = true;
  if (Status inside = check_bounds(batch); !inside) {
    done_.push_back({batch.id, std::move(inside)});
  } else if (!reaches_ || starts_on_device(batch)) {
    taken = post_staged(batch);
  } else {
    done_.push_back({batch.id, copy(batch)});
  }
  fail_if_lost();
  return taken;
}

// The peer is looked at before every batch, so that a number which the system gave to a new process is never
// used.
Status CmaChannel::copy(const Batch& batch, std::byte* staged) {
  Status status;
  lost_ = lost_ || !peer_is_alive();
  if (!lost_) status = copier_.copy(pid_, batch, staged);
  lost_ = lost_ || (!status && !peer_is_alive());
  return lost_ ? tl::unexpected(gone()) : std::move(status);
}

void CmaChannel::fail_if_lost() {
  if (state_ != ChannelState::kReady || closing_) return;
  if (lost_) return fail_with(gone());
  if (breach_) fail_with(*breach_);
}

bool CmaChannel::progress(std::vector<Completion>& completions) {
  if (state_ == ChannelState::kConnecting && !closing_) return shake_hands();
  const ChannelState before = state_;
  bool moved = false;
  if (closing_) {
    if (!peer_is_alive()) finish();
  } else if (state_ == ChannelState::kReady) {
    moved = move();
  }
  moved = moved || !done_.empty() || state_ != before;
  for (Completion& completion : done_) completions.push_back(std::move(completion));
  done_.clear();
  return moved;
}

// Answers come before what waits for them, and what others wait for before what the peer wants.
bool CmaChannel::move() {
  bool moved = take_words();
  if (has_messages_ && take_messages()) moved = true;
  move_staged();
  if (serve()) moved = true;
  if (done_.empty() && !moved && turns_++ % kTurnsALook == 0) lost_ = lost_ || !peer_is_alive();
  if (lost_) take_words();  // its last ones
  fail_if_lost();
  return moved;
}

Error CmaChannel::gone() const {
  const std::string peer = pid_ == 0 ? "the peer's process" : fmt::format("process {}", pid_);
  return {ErrorCode::kPeerGone, peer + " ended or closed its cma channel"};
}

// While the peer may use slots of this side they stay, and so do the batches: one that was given back would
// else be made again, and the peer's copy of it land later. And a twin that serves already is waited for.
void CmaChannel::fail_with(Error error) {
  error_ = std::move(error);
  const bool waits = state_ == ChannelState::kConnecting ? may_be_taken_up() : awaits_owner();
  if (waits && peer_is_alive() && stop_copying()) {
    closing_ = true;
  } else {
    finish();
  }
}

void CmaChannel::finish() {
  const bool served = state_ != ChannelState::kConnecting || closing_;
  state_ = ChannelState::kFailed;
  fail_staged(error_);
  // Closed, they leave `events_`, which nothing more is to wake.
  listener_.reset();
  strangers_.clear();
  process_.reset();
  if (served) hang_up();  // else with the channel, once the session tells the peer why
}

// For good, and says so. What still wakes is no end; nobody takes it off the socket from now on.
bool CmaChannel::stop_copying() {
  ::shutdown(socket_.get(), SHUT_WR);
  epoll_event event{.events = EPOLLRDHUP, .data = {.fd = socket_.get()}};
  return ::epoll_ctl(events_.get(), EPOLL_CTL_MOD, socket_.get(), &event) == 0;
}

// Also where a child of this process holds the socket too.
void CmaChannel::hang_up() {
  if (socket_) ::shutdown(socket_.get(), SHUT_RDWR);
  socket_.reset();
}

LeavesPeer::Left CmaChannel::leave() {
  const bool taken_up = may_be_taken_up();
  if (taken_up) watch_twin();
  if ((!taken_up && state_ != ChannelState::kReady) || !peer_is_alive()) return {};
  auto slots = awaits_owner() ? staging_ : nullptr;
  fail_staged(gone());
  state_ = ChannelState::kFailed;
  const bool watched = stop_copying();
  auto end = std::make_unique<ProcessEnd>(std::move(events_), std::move(socket_), std::move(process_),
                                          std::move(slots));
  if (!watched) return {};
  return {std::move(end), {}};
}

// Its process too, where the channel has not come so far: a child of it may hold the socket open.
void CmaChannel::watch_twin() {
  if (process_) return;
  process_ = socket::watch_process(socket_);
  if (process_ && !watch(process_)) process_.reset();  // the socket tells as well
}

// An acceptor is ready before its proof has come to the connector, and may be at work by then.
bool CmaChannel::may_be_taken_up() const {
  return state_ == ChannelState::kConnecting && setup_.role == Role::kConnector && socket_;
}

std::string CmaChannel::describe() const {
  if (reaches_) return fmt::format("process {} -> {}", ::getpid(), pid_);
  return fmt::format("process {} -> one of another PID namespace, through shared memory", ::getpid());
}

}  // namespace p2p::cma
