// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "drivers/cuda/memory.h"
#include "softnet/comm.h"
#include "softnet/log.h"
#include "softnet/settings.h"
#include "softnet/unread.h"

namespace softnet {
namespace {
constexpr std::size_t kPieces = 64;
constexpr std::uint32_t kUnpackPage = 4096;

/// Gives back what of a consumed receive's pages goes back. A message is cut into tasks, each on a socket
/// that has time for it, so that two can be on one: of each socket the pages of the last task alone come
/// back.
void give_back(Pool& pool, const Request& request, std::mt19937_64& random) {
  const Habits& habits = settings().habits;
  if (!habits.last_tokens || habits.task_bytes == 0) return pool.give_back(request.extent);
  const std::uint64_t tasks = (request.size + habits.task_bytes - 1) / habits.task_bytes;
  const auto step = static_cast<std::uint32_t>(habits.task_bytes / kUnpackPage * kUnpackPage);
  std::set<std::uint64_t> seen;  // sockets, of the last task first
  Pool::Extent left = request.extent;
  for (std::uint64_t task = tasks; task-- > 1;) {
    const auto start = static_cast<std::uint32_t>(std::min<std::uint64_t>(task * step, left.size));
    if (seen.insert(random() % habits.sockets).second) {
      pool.give_back({left.offset + start, left.size - start});
    }
    left.size = start;
  }
  if (seen.insert(random() % habits.sockets).second) pool.give_back(left);
}

}  // namespace

RecvComm::RecvComm(UniqueFd socket, std::size_t packet_bytes)
    : socket_(std::move(socket)),
      packet_bytes_(packet_bytes),
      unpack_(settings().unpack),
      late_(settings().habits.tcpxo),
      throttle_(settings().seed + 1),
      random_(settings().seed) {
  for (Request& request : requests_) request.comm = this;
  if (!unpack_ && !late_) return;
  pool_ = Pool::of_receives();
  if (!unpack_) return;
  if (pool_ != nullptr) area_ = UnpackArea::take(pool_->base());
  if (area_) lists_ = &area_->lists();
}

RecvComm::~RecvComm() {
  if (unpack_) inform("closed after {} receives with {} fragments in the pool", received_, fragments_);
  for (const Request& request : requests_) {
    if (pool_ != nullptr) pool_->give_back(request.extent);
  }
}

void RecvComm::describe(abi::DeviceHandle& handle) {
  handle = unpack_ ? abi::DeviceHandle{abi::kDeviceUnpack, abi::kUnpackVersion, area_->handle(),
                                       sizeof(abi::UnpackDevice), 1}
                   : abi::DeviceHandle{abi::kDeviceHost, late_ ? abi::kUnpackVersion : 0, nullptr, 0, 0};
}

int RecvComm::post(void* data, int size, const MemoryHandle* handle, void** request) {
  if (handle == nullptr || request == nullptr || size < 0) return abi::kInternalError;
  if (const int code = handle->check("irecv", data, size); code != abi::kSuccess) return code;
  const std::lock_guard lock(mutex_);
  Request& slot = requests_[posted_ % kRequests];
  if (posted_ - freed_ == kRequests || slot.state != Request::State::kFree) {
    warn("irecv: all {} requests are in use", kRequests);
    return abi::kInternalError;
  }
  ++posted_;
  slot.state = Request::State::kPosted;
  slot.late = late_ && size != 0;
  slot.scattered = slot.late || (unpack_ && handle->type == abi::kPointerCuda);
  slot.data = static_cast<std::byte*>(data);
  slot.size = static_cast<std::size_t>(size);
  slot.moved = 0;
  slot.announced = false;
  slot.plan = {};
  slot.extent = {};
  *request = &slot;
  return abi::kSuccess;
}

int RecvComm::test(Request& request, int* done, int* sizes) {
  const std::lock_guard lock(mutex_);
  *done = 0;
  if (request.state == Request::State::kFlushed) {
    *done = 1;
    return deliver(request);
  }
  if (request.state != Request::State::kPosted || &request != &requests_[reported_ % kRequests]) {
    warn("test of a receive that is not the oldest under way");
    return abi::kInternalError;
  }
  if (error_ == abi::kSuccess && received_ == reported_) pull();
  if (received_ == reported_) return error_;
  if (unpack_) publish(request, reported_);
  ++reported_;
  request.state = unpack_ || request.late ? Request::State::kDone : Request::State::kFree;
  if (request.state == Request::State::kFree) ++freed_;
  if (settings().report_sizes && sizes != nullptr) *sizes = static_cast<int>(request.size);
  *done = 1;
  return abi::kSuccess;
}

int RecvComm::consumed(Request* request) {
  const std::lock_guard lock(mutex_);
  if (!unpack_) return abi::kSuccess;
  if (request == nullptr || request->state != Request::State::kDone ||
      request != &requests_[freed_ % kRequests]) {
    warn("irecvConsumed of a receive that is not the oldest done");
    return abi::kInternalError;
  }
  give_back(*pool_, *request, random_);
  request->extent = {};
  request->state = Request::State::kFree;
  ++freed_;
  return abi::kSuccess;
}

int RecvComm::flush(const void* data, int size, void** request) {
  const std::lock_guard lock(mutex_);
  const auto done = std::ranges::find_if(requests_, [&](const Request& one) {
    return one.state == Request::State::kDone && one.late && one.data == data;
  });
  if (done == requests_.end() || std::cmp_less(size, done->size)) {
    warn("iflush of {} bytes at {}, where no receive is done", size, data);
    return abi::kInvalidArgument;
  }
  if (++flushes_ % 3 != 0) return deliver(*done);
  done->state = Request::State::kFlushed;
  *request = &*done;
  return abi::kSuccess;
}

/// Only now the bytes come to where the receive wanted them.
int RecvComm::deliver(Request& request) {
  const std::byte* const bytes = pool_->base() + request.extent.offset;
  p2p::Status copied;
  if (settings().cuda) {
    copied = p2p::cuda::copy_now(request.data, bytes, request.size);
  } else {
    std::memcpy(request.data, bytes, request.size);
  }
  pool_->give_back(request.extent);
  request.extent = {};
  request.state = Request::State::kFree;
  ++freed_;
  if (copied) return abi::kSuccess;
  warn("flush: {}", copied.error().message);
  return abi::kUnhandledCudaError;
}

void RecvComm::pull() {
  take_bytes();
  if (untold_ != 0) tell_read();
}

/// What waits for it are a few bytes, so that the socket always has room.
void RecvComm::tell_read() {
  std::array<std::byte, kRequests> words;
  words.fill(kRead);
  iovec piece{words.data(), std::min(untold_, words.size())};
  const long told = send_some(socket_.get(), {&piece, 1});
  if (told > 0) untold_ -= static_cast<std::size_t>(told);
}

/// Takes from the socket what posted receives have room for, and the header of the next message.
void RecvComm::take_bytes() {
  std::array<iovec, kPieces + 1> room;
  while (received_ != posted_ && error_ == abi::kSuccess) {
    Request& request = requests_[received_ % kRequests];
    if (!request.announced && next_bytes_ == sizeof next_ && !begin_message(request)) return;
    std::size_t count = request.announced ? scatter(request, std::span(room).first(kPieces)) : 0;
    std::size_t body = 0;
    for (const iovec& piece : std::span(room).first(count)) body += piece.iov_len;
    // The header behind the last byte comes with it.
    if (!request.announced || request.moved + body == request.size) {
      room[count++] = {reinterpret_cast<std::byte*>(&next_) + next_bytes_, sizeof next_ - next_bytes_};
    }
    if (request.announced && request.moved == request.size) {
      ++received_;
      continue;
    }
    const std::size_t limit = throttle_.allowance();
    if (limit == 0) return;
    const long moved = receive_some(socket_.get(), clip(std::span(room).first(count), limit));
    if (moved == kLost) {
      warn("receive: {}", errno == 0 ? "the peer closed the connection" : reason(errno));
      error_ = abi::kSystemError;
      return;
    }
    if (moved == 0) return;
    throttle_.moved();
    if (!account(request, static_cast<std::size_t>(moved))) continue;
    ++received_;
    if (request.lent) ++untold_;
  }
}

/// Returns true if the request now has all its bytes.
bool RecvComm::account(Request& request, std::size_t moved) {
  if (request.announced) {
    const std::size_t body = std::min(request.size - request.moved, moved);
    request.moved += body;
    moved -= body;
  }
  next_bytes_ += moved;
  return request.announced && request.moved == request.size;
}

/// Takes the header that has come for `request`. False: cannot go on now, or never (error_).
bool RecvComm::begin_message(Request& request) {
  if (next_.magic != MessageHeader::kMagic || next_.size > request.size) {
    warn("a message of {} bytes meets a receive of {}", next_.size, request.size);
    error_ = abi::kInvalidUsage;
    return false;
  }
  const std::size_t posted_size = request.size;
  request.size = next_.size;
  request.lent = next_.lent != 0;
  if (request.scattered && !place(request)) {
    request.size = posted_size;
    return false;
  }
  if (lists_ != nullptr) {
    const std::size_t slot = received_ % abi::kUnpackSlots;
    std::atomic_ref(lists_->count[slot]).store(0, std::memory_order_relaxed);
    std::ranges::copy(request.plan.entries, lists_->entries[slot]);
    for (abi::UnpackEntry& entry : std::span(lists_->entries[slot]).first(request.plan.entries.size())) {
      entry.source += request.extent.offset;
    }
    if (settings().fragments == Fragments::kRandom) {
      std::ranges::shuffle(std::span(lists_->entries[slot]).first(request.plan.entries.size()), random_);
    }
  }
  request.announced = true;
  next_bytes_ = 0;
  return true;
}

/// Finds room in the pool for all of the message at once, so that comms cannot block each other half-way.
bool RecvComm::place(Request& request) {
  if (request.plan.entries.empty()) request.plan = cut(request.size);
  if (request.plan.entries.size() > abi::kUnpackEntries) {
    warn("a message of {} bytes has {} fragments, more than {}", request.size, request.plan.entries.size(),
         abi::kUnpackEntries);
    if (settings().habits.fragment_exit) std::_Exit(1);
    error_ = abi::kInternalError;
    return false;
  }
  if (request.plan.extent_bytes > pool_->size()) {
    warn("a message of {} bytes does not fit into the pool of {}", request.size, pool_->size());
    error_ = abi::kInternalError;
    return false;
  }
  if (request.size == 0) return true;
  const auto extent = pool_->take(request.plan.extent_bytes);
  if (!extent) return false;
  request.extent = *extent;
  return true;
}

FragmentPlan RecvComm::cut(std::size_t size) {
  if (late_) return plan_pages(size);
  const bool fits = size <= abi::kUnpackEntries * kUnpackPage;
  if (settings().fragments == Fragments::kRandom && fits) return plan_random(size, random_);
  if (settings().fragments == Fragments::kPackets) return plan_packets(size, packet_bytes_);
  return plan_pages(size);
}

/// Where the next bytes of the message belong; returns how many pieces.
std::size_t RecvComm::scatter(const Request& request, std::span<iovec> pieces) const {
  if (request.moved == request.size) return 0;
  if (!request.scattered) {
    pieces[0] = {request.data + request.moved, request.size - request.moved};
    return 1;
  }
  const auto& entries = request.plan.entries;
  auto entry = std::ranges::upper_bound(entries, request.moved, {}, &abi::UnpackEntry::destination) - 1;
  std::size_t skip = request.moved - entry->destination;
  std::byte* const start = pool_->base() + request.extent.offset;
  std::size_t count = 0;
  for (; entry != entries.end(); ++entry, skip = 0) {
    std::byte* const at = start + entry->source + skip;
    const std::size_t size = entry->size - skip;
    if (count != 0 && static_cast<std::byte*>(pieces[count - 1].iov_base) + pieces[count - 1].iov_len == at) {
      pieces[count - 1].iov_len += size;
    } else if (count == pieces.size()) {
      break;
    } else {
      pieces[count++] = {at, size};
    }
  }
  return count;
}

void RecvComm::publish(const Request& request, std::uint64_t sequence) {
  if (fragments_ == 0 && !request.plan.entries.empty()) {
    inform(
        "{} received bytes stay in the pool as {} fragments, and the buffer at {} as it was: who posted the "
        "receive has to unpack",
        request.size, request.plan.entries.size(), static_cast<const void*>(request.data));
  }
  fragments_ += request.plan.entries.size();
  std::atomic_ref(lists_->count[sequence % abi::kUnpackSlots])
      .store(request.plan.entries.size(), std::memory_order_release);
}

}  // namespace softnet
