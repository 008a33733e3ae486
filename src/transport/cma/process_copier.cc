// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cma/process_copier.h"

#include <cerrno>
#include <climits>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/io_vector.h"

namespace p2p::cma {

namespace {

// Most entries of a list that one system call takes (UIO_MAXIOV).
constexpr std::size_t kMaxEntries = IOV_MAX;

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

Status ProcessCopier::copy(pid_t pid, const Batch& batch, std::byte* staged) {
  local_.clear();
  remote_.clear();
  Status status;
  batch.for_each_piece([&](const Segment& piece) {
    if (!status) return;
    if (local_.size() == kMaxEntries || remote_.size() == kMaxEntries) status = flush(pid, batch.operation);
    // Blocks that are scattered on one side only need one entry on the other.
    std::byte* const local = staged == nullptr ? piece.local : std::exchange(staged, staged + piece.size);
    append_run(local_, local, piece.size);
    append_run(remote_, reinterpret_cast<std::byte*>(piece.remote), piece.size);
  });
  return status ? flush(pid, batch.operation) : status;
}

Status ProcessCopier::flush(pid_t pid, Operation operation) {
  std::span<iovec> local = local_;
  std::span<iovec> remote = remote_;
  const auto transfer = operation == Operation::kWrite ? ::process_vm_writev : ::process_vm_readv;
  Status status;
  while (!local.empty() && status) {
    const ssize_t copied = transfer(pid, local.data(), local.size(), remote.data(), remote.size(), 0);
    if (copied > 0) {
      local = local.subspan(cut_front(local, static_cast<std::size_t>(copied)));
      remote = remote.subspan(cut_front(remote, static_cast<std::size_t>(copied)));
    } else if (copied == 0 || errno != EINTR) {
      status = copy_error(pid, operation, remote.front(), copied == 0 ? EFAULT : errno);
    }
  }
  local_.clear();
  remote_.clear();
  return status;
}

}  // namespace p2p::cma
