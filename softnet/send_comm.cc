// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "softnet/comm.h"
#include "softnet/log.h"
#include "softnet/settings.h"

namespace softnet {
namespace {

// Device memory is copied so many requests ahead of the socket: what waits for longer has left the
// processor's cache when its turn comes.
constexpr std::uint64_t kStagedAhead = 6;

}  // namespace

bool MemoryHandle::covers(const void* address, std::size_t bytes) const {
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  const auto base = reinterpret_cast<std::uintptr_t>(data);
  return bytes == 0 || (start >= base && start - base <= size && bytes <= size - (start - base));
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
  if (settings().cuda) stager_ = Stager::open();
}

SendComm::~SendComm() {
  stager_.reset();  // nothing is copied into the extents any more
  if (!settings().cuda || Pool::of_sends() == nullptr) return;
  for (const Request& request : requests_) Pool::of_sends()->give_back(request.extent);
}

int SendComm::post(const void* data, int size, const MemoryHandle* handle, void** request) {
  if (handle == nullptr || request == nullptr || size < 0) return abi::kInternalError;
  if (!handle->covers(data, static_cast<std::size_t>(size))) {
    warn("isend of {} bytes at {} outside of the registered {} bytes at {}", size, data, handle->size,
         static_cast<const void*>(handle->data));
    return abi::kInternalError;
  }
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
  slot.header = {MessageHeader::kMagic, slot.size};
  const bool on_device = stager_ && handle->device >= 0 && size != 0;
  slot.staging = on_device ? Request::Staging::kWaiting : Request::Staging::kNone;
  if (on_device) stage();
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
  if (sent_ > freed_) {
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
  const std::uint64_t end = std::min(posted_, sent_ + kStagedAhead);
  for (std::uint64_t index = sent_; index < end && error_ == abi::kSuccess; ++index) {
    Request& request = requests_[index % kRequests];
    if (request.staging != Request::Staging::kWaiting) continue;
    const auto started = stager_->start(index % kRequests, request.data, request.size, request.extent);
    if (started == Stager::Progress::kNoRoom) return;
    if (started == Stager::Progress::kFailed) error_ = abi::kUnhandledCudaError;
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
  return true;
}

void SendComm::push() {
  std::array<iovec, 2 * kRequests> room;
  if (stager_) stage();
  while (sent_ != posted_ && error_ == abi::kSuccess) {
    const std::size_t limit = fault_limit(throttle_.allowance());
    if (limit == 0) return;
    const std::span<iovec> pieces = clip(std::span(room).first(gather(room)), limit);
    if (pieces.empty()) return;
    const long moved = send_some(socket_.get(), pieces);
    if (moved == kLost) {
      warn("send: {}", reason(errno));
      error_ = abi::kSystemError;
      return;
    }
    if (moved == 0) return look_at_peer();
    throttle_.moved();
    account(static_cast<std::size_t>(moved));
  }
}

/// Now and then, while the socket takes nothing.
void SendComm::look_at_peer() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return;
  next_look_ = now + settings().timeout / 16;
  if (!peer_is_silent(socket_.get())) return;
  warn("send: the peer's host has not answered for {} ms", settings().timeout.count());
  error_ = abi::kSystemError;
}

/// Headers and bytes of what is posted, not yet sent and can be read; returns how many pieces.
std::size_t SendComm::gather(std::span<iovec> pieces) {
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
    if (body != request.size) pieces[count++] = {request.data + body, request.size - body};
  }
  return count;
}

void SendComm::account(std::size_t moved) {
  bytes_ += moved;
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
      ::shutdown(socket_.get(), SHUT_RDWR);
      return limit;
    }
    limit = std::min<std::size_t>(limit, *set.drop_after - bytes_);
  }
  return limit;
}

}  // namespace softnet
