// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/window.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/error.h"

namespace p2p::nccl_net {
namespace {

Status check_range(const char* call, const Comm& comm, const std::byte* data, std::size_t size,
                   const MemoryHandle& memory) {
  if (memory.comm() != &comm) {
    return fail(ErrorCode::kInvalidArgument, "{} on {}: the memory is registered with another comm", call,
                comm.device());
  }
  if (!memory.covers(data, size)) {
    return fail(ErrorCode::kOutOfRange, "{} on {}: {} bytes at {} are not in the registered range", call,
                comm.device(), size, static_cast<const void*>(data));
  }
  if (size > comm.net().max_message_bytes()) {
    return fail(ErrorCode::kInvalidArgument, "{} on {}: {} bytes are more than ABI v{} carries", call,
                comm.device(), size, comm.net().version());
  }
  return {};
}

/// Plugins report a dead peer as a system error.
Error test_error(int code, const Comm& comm, const char* what) {
  Error error = plugin_error(code, fmt::format("{} on {}", what, comm.device()));
  if (code == abi::kSystemError) error.code = ErrorCode::kPeerGone;
  return error;
}

/// Reads the list of a finished receive; `entries` beyond what a list holds would be another's.
Result<std::span<const abi::UnpackEntry>> read_list(const RecvComm& recv, std::uint64_t sequence) {
  const std::size_t slot = sequence % abi::kUnpackSlots;
  auto& count = const_cast<std::uint64_t&>(recv.unpack->lists->count[slot]);
  const std::uint64_t entries = std::atomic_ref(count).load(std::memory_order_acquire);
  if (entries > abi::kUnpackEntries) {
    return fail(ErrorCode::kProtocol, "receive {} on {}: the plugin lists {} fragments, more than {}",
                sequence, recv.comm->device(), entries, abi::kUnpackEntries);
  }
  return std::span(recv.unpack->lists->entries[slot]).first(entries);
}

}  // namespace

SendWindow::SendWindow(SendComm comm, std::size_t depth)
    : comm_(std::move(comm)), depth_(std::clamp<std::size_t>(depth, 1, kMaxRequests)) {}

Result<bool> SendWindow::post(const std::byte* data, std::size_t size, const MemoryHandle& memory) {
  Comm& comm = *comm_.comm;
  if (auto checked = check_range("isend", comm, data, size, memory); !checked) {
    return tl::unexpected(checked.error());
  }
  if (full()) return false;
  void* request = nullptr;
  // The tag is ignored by some plugins and compared by others: one value for all.
  const int code =
      comm.net().isend(comm.raw(), const_cast<std::byte*>(data), size, 0, memory.raw(), &request);
  if (code != abi::kSuccess) {
    return tl::unexpected(plugin_error(code, fmt::format("isend of {} bytes on {}", size, comm.device())));
  }
  if (request == nullptr) return false;
  requests_[posted_++ % kMaxRequests] = request;
  return true;
}

Result<bool> SendWindow::poll() {
  if (empty()) return false;
  Comm& comm = *comm_.comm;
  int done = 0;
  int size = 0;
  const int code = comm.net().test(requests_[done_ % kMaxRequests], &done, &size);
  if (code != abi::kSuccess) return tl::unexpected(test_error(code, comm, "test of a send"));
  if (done == 0) return false;
  ++done_;
  return true;
}

ReceiveWindow::ReceiveWindow(RecvComm comm, std::size_t depth)
    : comm_(std::move(comm)),
      depth_(std::clamp<std::size_t>(depth, 1, kMaxRequests)),
      flushes_(!comm_.unpack && comm_.comm->net().has_flush()) {}

Result<bool> ReceiveWindow::post(std::byte* data, std::size_t size, const MemoryHandle& memory) {
  Comm& comm = *comm_.comm;
  if (auto checked = check_range("irecv", comm, data, size, memory); !checked) {
    return tl::unexpected(checked.error());
  }
  if (full()) return false;
  void* request = nullptr;
  const int code = comm.net().irecv(comm.raw(), data, size, 0, memory.raw(), &request);
  if (code != abi::kSuccess) {
    return tl::unexpected(plugin_error(code, fmt::format("irecv of {} bytes on {}", size, comm.device())));
  }
  if (request == nullptr) return false;
  const bool flush = flushes_ && memory.type() == abi::kPointerCuda && size != 0;
  receives_[posted_++ % kMaxRequests] = {request, data, size, flush ? memory.raw() : nullptr};
  return true;
}

Result<bool> ReceiveWindow::done(void* request, const char* what) {
  int done = 0;
  int size = 0;
  const int code = comm_.comm->net().test(request, &done, &size);
  if (code != abi::kSuccess) return tl::unexpected(test_error(code, *comm_.comm, what));
  return done != 0;
}

/// Whether its bytes can be read.
Result<bool> ReceiveWindow::received(const Receive& receive) {
  if (flush_ == nullptr) {
    const auto come = done(receive.request, "test of a receive");
    if (!come || !*come || receive.memory == nullptr) return come;
    Comm& comm = *comm_.comm;
    const int code = comm.net().iflush(comm.raw(), receive.data, receive.size, receive.memory, &flush_);
    if (code != abi::kSuccess) {
      return tl::unexpected(
          plugin_error(code, fmt::format("iflush of {} bytes on {}", receive.size, comm.device())));
    }
    if (flush_ == nullptr) return true;
  }
  const auto flushed = done(flush_, "test of a flush");
  if (flushed && *flushed) flush_ = nullptr;
  return flushed;
}

Result<std::optional<Arrival>> ReceiveWindow::poll() {
  if (!waiting()) return std::nullopt;
  const auto come = received(receives_[arrived_ % kMaxRequests]);
  if (!come) return tl::unexpected(come.error());
  if (!*come) return std::nullopt;
  Arrival arrival{.sequence = arrived_};
  if (comm_.unpack) {
    auto entries = read_list(comm_, arrived_);
    if (!entries) return tl::unexpected(entries.error());
    arrival.unpack = true;
    arrival.entries = *entries;
  }
  ++arrived_;
  return arrival;
}

Status ReceiveWindow::consume() {
  Comm& comm = *comm_.comm;
  if (consumed_ == arrived_) {
    return fail(ErrorCode::kInvalidArgument, "consume on {}: no receive has arrived", comm.device());
  }
  void* request = receives_[consumed_++ % kMaxRequests].request;
  if (!comm_.unpack || !comm.net().has_consumed()) return {};
  const int code = comm.net().irecv_consumed(comm.raw(), request);
  if (code != abi::kSuccess) {
    return tl::unexpected(plugin_error(code, fmt::format("irecvConsumed on {}", comm.device())));
  }
  return {};
}

}  // namespace p2p::nccl_net
