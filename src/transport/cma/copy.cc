// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cma/copy.h"

#include <cerrno>
#include <climits>
#include <span>

#include "base/error.h"

namespace p2p::cma {

namespace {

// Most entries of a list that one system call takes (UIO_MAXIOV).
constexpr std::size_t kMaxEntries = IOV_MAX;

// Takes `bytes` off the front of the list.
void drop_front(std::span<iovec>& list, std::size_t bytes) {
  while (bytes != 0) {
    iovec& first = list.front();
    if (bytes < first.iov_len) {
      first.iov_base = static_cast<std::byte*>(first.iov_base) + bytes;
      first.iov_len -= bytes;
      return;
    }
    bytes -= first.iov_len;
    list = list.subspan(1);
  }
}

tl::unexpected<Error> copy_error(pid_t pid, Operation operation, const iovec& remote, int error_number) {
  if (error_number == ESRCH) {
    return fail(ErrorCode::kPeerGone, "copy {} bytes at {} of process {}: it has ended", remote.iov_len,
                remote.iov_base, pid);
  }
  const bool write = operation == Operation::kWrite;
  return tl::unexpected(system_error(
      fmt::format("{} {} bytes at {} of process {} with {}", write ? "write" : "read", remote.iov_len,
                  remote.iov_base, pid, write ? "process_vm_writev" : "process_vm_readv"),
      error_number));
}

}  // namespace

Status Copier::copy(pid_t pid, const Batch& batch) {
  local_.clear();
  remote_.clear();
  Status status;
  batch.for_each_piece([&](const Segment& piece) {
    if (!status) return;
    if (local_.size() == kMaxEntries || remote_.size() == kMaxEntries) status = flush(pid, batch.operation);
    add(local_, piece.local, piece.size);
    add(remote_, reinterpret_cast<std::byte*>(piece.remote), piece.size);
  });
  return status ? flush(pid, batch.operation) : status;
}

// Blocks that are scattered on one side only need one entry on the other.
void Copier::add(std::vector<iovec>& list, std::byte* data, std::size_t size) {
  if (!list.empty() && static_cast<std::byte*>(list.back().iov_base) + list.back().iov_len == data) {
    list.back().iov_len += size;
  } else {
    list.push_back({data, size});
  }
}

Status Copier::flush(pid_t pid, Operation operation) {
  std::span<iovec> local = local_;
  std::span<iovec> remote = remote_;
  const auto transfer = operation == Operation::kWrite ? ::process_vm_writev : ::process_vm_readv;
  Status status;
  while (!local.empty() && status) {
    const ssize_t copied = transfer(pid, local.data(), local.size(), remote.data(), remote.size(), 0);
    if (copied > 0) {
      drop_front(local, static_cast<std::size_t>(copied));
      drop_front(remote, static_cast<std::size_t>(copied));
    } else if (copied == 0 || errno != EINTR) {
      status = copy_error(pid, operation, remote.front(), copied == 0 ? EFAULT : errno);
    }
  }
  local_.clear();
  remote_.clear();
  return status;
}

}  // namespace p2p::cma
