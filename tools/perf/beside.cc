// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "beside.h"

#include <array>
#include <utility>

namespace p2p::perf {

Beside::Beside(const Connection& connection, const Row& row, Buffer here, RemoteSpan there)
    : here_(std::move(here)), thread_([this, connection, read = row.operation == Operation::kRead, there] {
        run(connection, read, there);
      }) {}

void Beside::run(const Connection& connection, bool read, const RemoteSpan& there) {
  const PostOptions options{.priority = Priority::kLow};
  const LocalSpan here = here_.region().span(0, there.size);
  const auto post = [&] {
    return read ? connection.read(here, there, options) : connection.write(here, there, options);
  };
  std::array<Transfer, 2> transfers{post(), post()};
  for (std::size_t i = 0; failed_ && !stop_.load(); i = 1 - i) {
    failed_ = transfers[i].wait(kTransferTime);
    if (failed_) bytes_.fetch_add(here.size, std::memory_order_relaxed);
    if (!stop_.load()) transfers[i] = post();
  }
  for (const Transfer& transfer : transfers) {
    transfer.cancel();
    static_cast<void>(transfer.wait(kTransferTime));
  }
}

Status Beside::stop() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
  return failed_;
}

}  // namespace p2p::perf
