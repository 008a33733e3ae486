// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "softnet/comm.h"
#include "softnet/log.h"
#include "softnet/settings.h"
#include "softnet/unread.h"

namespace softnet {
namespace {

// Device memory is copied so many requests ahead of what has been read, or was copied to the socket: what
// waits for longer has left the processor's cache when its turn comes.
constexpr std::uint64_t kStagedAhead = 6;

}  // namespace

bool MemoryHandle::covers(const void* address, std::size_t bytes) const {
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  const auto base = reinterpret_cast<std::uintptr_t>(data);
  return bytes == 0 || (start >= base && start - base <= size && bytes <= size - (start - base));
}

int MemoryHandle::check(const char* call, const void* address, int bytes) const {
  if (!covers(address, static_cast<std::size_t>(bytes))) {
    warn("{} of {} bytes at {} outside of the registered {} bytes at {}", call, bytes, address, size,
         static_cast<const void*>(data));
    return abi::kInternalError;
  }
  if (!settings().habits.tcpxo || type == abi::kPointerCuda || bytes == 0) return abi::kSuccess;
  warn("{} of {} bytes of host memory, and only CUDA memory moves", call, bytes);
  return abi::kInvalidArgument;
}

std::size_t Throttle::allowance() {
  const Settings& set = settings();
  if (set.delay.count() != 0 && std::chrono::steady_clock::now() < next_) return 0;
  return set.short_io ? 1 + random_() % 4096 : std::numeric_limits<std::size_t>::max();
}

void Throttle::moved() {
  if (settings().delay.count() != 0) next_ = std::chrono::steady_clock::now() + settings().delay;
}

SendComm::SendComm(UniqueFd socket) : socket_(std::move(socket)), throttle_(settings().seed) {
  for (Request& request : requests_) request.comm = this;
  if (!Stager::wanted()) return;
  sweep_unread();
  stager_ = Stager::open();
  lender_ = Lender::open();
}

SendComm::~SendComm() {
  stager_.reset();  // nothing is copied into the extents any more
  if (!Stager::wanted() || Pool::of_sends() == nullptr) return;
  std::vector<Pool::Extent> unread;
  for (const Request& request : requests_) {
    if (request.unread) {
      unread.push_back(request.extent);
    } else {
      Pool::of_sends()->give_back(request.extent);
    }
  }
  lender_.reset();
  const std::size_t messages = unread.size();
  if (messages != 0) keep_unread(std::move(socket_), std::move(unread), messages);
  sweep_unread();
}

int SendComm::post(const void* data, int size, const MemoryHandle* handle, void** request) {
  if (handle == nullptr || request == nullptr || size < 0) return abi::kInternalError;
  if (const int code = handle->check("isend", data, size); code != abi::kSuccess) return code;
  const std::lock_guard lock(mutex_);
  if (posted_ - freed_ == kRequests) {
    warn("isend: all {} requests are in use", kRequests);
    return abi::kInternalError;
  }
  Request& slot = requests_[posted_++ % kRequests];
  slot.state = Request::State::kPosted;
  slot.data = static_cast<std::byte*>(const_cast<void*>(data));
  slot.size = static_cast<std::size_t>(size);
  slot.moved = 0;
  slot.lent = false;
  slot.header = {.size = static_cast<std::uint32_t>(size)};
  const bool staged = stager_ && (handle->device >= 0 || settings().stage) && size != 0;
  slot.staging = staged ? Request::Staging::kWaiting : Request::Staging::kNone;
  if (staged) stage();
  *request = &slot;
  return abi::kSuccess;
}

int SendComm::test(Request& request, int* done, int* /*sizes*/) {
  const std::lock_guard lock(mutex_);
  *done = 0;
  if (request.state != Request::State::kPosted || &request != &requests_[freed_ % kRequests]) {
    warn("test of a send that is not the oldest under way");
    return abi::kInternalError;
  }
  if (error_ == abi::kSuccess) push();
  if (sent_ > freed_ && !request.unread) {
    request.state = Request::State::kFree;
    if (request.staging != Request::Staging::kNone) Pool::of_sends()->give_back(request.extent);
    request.extent = {};
    ++freed_;
    *done = 1;
    return abi::kSuccess;
  }
  return error_;
}

/// Starts to copy what waits for it, in order.
void SendComm::stage() {
  const std::uint64_t end = std::min(posted_, oldest_unread() + kStagedAhead);
  for (std::uint64_t index = sent_; index < end; ++index) {
    Request& request = requests_[index % kRequests];
    if (request.staging != Request::Staging::kWaiting) continue;
    if (!stager_->start(index % kRequests, request.data, request.size, request.extent)) return sweep_unread();
    request.staging = Request::Staging::kCopying;
  }
}

/// True if the bytes of the request can be read here.
bool SendComm::can_leave(std::size_t slot) {
  Request& request = requests_[slot];
  if (request.staging == Request::Staging::kNone || request.staging == Request::Staging::kStaged) return true;
  if (request.staging == Request::Staging::kWaiting) return false;
  const auto copied = stager_->copied(slot);
  if (copied == Stager::Copied::kFailed) error_ = abi::kUnhandledCudaError;
  if (copied != Stager::Copied::kYes) return false;
  request.data = Stager::at(request.extent);
  request.staging = Request::Staging::kStaged;
  request.lent = lender_ != nullptr && request.size >= Lender::kLeast;
  request.header.lent = request.lent ? 1 : 0;
  return true;
}

/// The oldest request whose bytes have left and were not read, or else that whose bytes are to leave next.
std::uint64_t SendComm::oldest_unread() const {
  std::uint64_t index = freed_;
  while (index != sent_ && !requests_[index % kRequests].unread) ++index;
  return index;
}

/// Takes note of what the peer has read of what was lent.
void SendComm::hear() {
  const long heard = hear_reads(socket_.get());
  if (heard == kLost) {
    warn("send: {}", errno == 0 ? "the peer closed the connection" : reason(errno));
    error_ = abi::kSystemError;
  }
  for (long message = 0; message < heard; ++message) {
    const std::uint64_t index = oldest_unread();
    if (index == sent_) {
      warn("send: the peer has read a message that was not sent");
      error_ = abi::kInternalError;
      return;
    }
    requests_[index % kRequests].unread = false;
  }
}

void SendComm::push() {
  if (lender_ && requests_[freed_ % kRequests].unread) hear();
  if (stager_) stage();
  while (sent_ != posted_ && error_ == abi::kSuccess) {
    const std::size_t limit = fault_limit(throttle_.allowance());
    if (limit == 0) return;
    const long moved = send_next(limit);
    if (moved == kLost) {
      warn("send: {}", reason(errno));
      error_ = abi::kSystemError;
      return;
    }
    if (moved == 0) return look_at_peer();
    throttle_.moved();
    account(static_cast<std::size_t>(moved));
  }
  if (sent_ == posted_ && oldest_unread() != sent_) look_at_peer();
}

/// As send_some, of what is to leave next. 0 also if that is not there yet.
long SendComm::send_next(std::size_t limit) {
  std::array<iovec, 2 * kRequests> room;
  Request& next = requests_[sent_ % kRequests];
  if (next.lent && next.moved >= sizeof next.header) {
    const std::size_t body = next.moved - sizeof next.header;
    const long moved = lender_->send(socket_.get(), {next.data + body, next.size - body}, limit);
    next.unread = next.unread || moved > 0;
    return moved;
  }
  Follows follows = Follows::kNothing;
  const std::span<iovec> pieces = clip(std::span(room).first(gather(room, follows)), limit);
  return pieces.empty() ? 0 : send_some(socket_.get(), pieces, follows);
}

/// Now and then, while the socket takes nothing or the peer reads nothing. Not before that has lasted for the
/// timeout: after a pause the peer's last answer is old, whoever it is.
void SendComm::look_at_peer() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return;
  next_look_ = now + settings().timeout / 16;
  if (!peer_is_silent(socket_.get())) return;
  warn("send: the peer's host has not answered for {} ms", settings().timeout.count());
  error_ = abi::kSystemError;
}

/// Headers and bytes of what is posted, not yet sent and can be read, up to what is lent; returns how many
/// pieces.
std::size_t SendComm::gather(std::span<iovec> pieces, Follows& follows) {
  std::size_t count = 0;
  for (std::uint64_t index = sent_; index != posted_; ++index) {
    if (!can_leave(index % kRequests)) break;
    Request& request = requests_[index % kRequests];
    const std::size_t header = std::min(request.moved, sizeof request.header);
    const std::size_t body = request.moved - header;
    if (header != sizeof request.header) {
      pieces[count++] = {reinterpret_cast<std::byte*>(&request.header) + header,
                         sizeof request.header - header};
    }
    if (request.lent) {
      follows = Follows::kMore;
      break;
    }
    if (body != request.size) pieces[count++] = {request.data + body, request.size - body};
  }
  return count;
}

void SendComm::account(std::size_t moved) {
  bytes_ += moved;
  next_look_ = std::chrono::steady_clock::now() + settings().timeout;
  for (; sent_ != posted_; ++sent_) {
    Request& request = requests_[sent_ % kRequests];
    const std::size_t left = request.size + sizeof request.header - request.moved;
    const std::size_t step = std::min(left, moved);
    request.moved += step;
    moved -= step;
    if (step != left) return;
  }
}

/// What the faults of the settings leave of `limit`.
std::size_t SendComm::fault_limit(std::size_t limit) {
  const Settings& set = settings();
  if (set.habits.last_tokens && set.habits.task_bytes == 0) return 0;
  if (set.stall_after)
    limit = std::min<std::size_t>(limit, *set.stall_after - std::min(bytes_, *set.stall_after));
  if (set.drop_after) {
    if (bytes_ >= *set.drop_after) {
      ::shutdown(socket_.get(), SHUT_WR);
      return limit;
    }
    limit = std::min<std::size_t>(limit, *set.drop_after - bytes_);
  }
  return limit;
}

}  // namespace softnet
