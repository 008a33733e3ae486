// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "tcpx/transfer.h"

#include <thread>
#include <utility>

#include "base/error.h"
#include "tcpx/core.h"

namespace tcpx {

using p2p::ErrorCode;
using p2p::fail;
using p2p::Result;
using p2p::Status;
using Core = TcpxSession::Core;

struct TcpxTransfer::State {
  std::weak_ptr<Core> core;
  std::string remote;
  std::shared_ptr<Progress> progress = std::make_shared<Progress>();

  Status post(Core::Direction direction, const Core::Range& range) const {
    const auto session = core.lock();
    if (!session) return fail(ErrorCode::kCancelled, "transfer with {}: its session is closed", remote);
    return session->post(remote, direction, range, progress);
  }
};

TcpxTransfer::TcpxTransfer(const TcpxSession& session, std::string remote_name)
    : state_(new State{session.core_, std::move(remote_name)}) {}
TcpxTransfer::TcpxTransfer(TcpxTransfer&&) noexcept = default;
TcpxTransfer& TcpxTransfer::operator=(TcpxTransfer&&) noexcept = default;
TcpxTransfer::~TcpxTransfer() = default;

Status TcpxTransfer::postSend(std::uint64_t mem_id, std::uint64_t offset, std::uint64_t size) {
  return state_->post(Core::Direction::kSend, {mem_id, offset, size});
}

Status TcpxTransfer::postRecv(std::uint64_t mem_id, std::uint64_t offset, std::uint64_t size) {
  return state_->post(Core::Direction::kReceive, {mem_id, offset, size});
}

Result<bool> TcpxTransfer::isComplete() {
  const auto session = state_->core.lock();
  if (!session) return fail(ErrorCode::kCancelled, "transfer with {}: its session is closed", state_->remote);
  return session->poll(state_->remote, *state_->progress);
}

Status TcpxTransfer::wait(std::chrono::nanoseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const auto complete = isComplete();
    if (!complete) return tl::unexpected(complete.error());
    if (*complete) return {};
    if (std::chrono::steady_clock::now() >= end) {
      const auto session = state_->core.lock();
      return fail(ErrorCode::kTimedOut, "transfer with {}: not complete in time: {}", state_->remote,
                  session ? session->where_it_stands(state_->remote) : "its session is closed");
    }
    std::this_thread::yield();
  }
}

void TcpxTransfer::release() { state_->progress = std::make_shared<Progress>(); }

}  // namespace tcpx
