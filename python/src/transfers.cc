// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transfers.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "convert/errors.h"

namespace p2p::python {

void TransferTable::add(std::uint64_t id, Transfer transfer, Kind kind) {
  const std::lock_guard lock(mutex_);
  pending_.emplace(id, Pending{std::move(transfer), kind});
}

TransferTable::Found TransferTable::find(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  if (const auto pending = pending_.find(id); pending != pending_.end())
    return {pending->second.transfer, {}};
  if (const auto failed = failed_.find(id); failed != failed_.end()) {
    return {{}, tl::unexpected(failed->second)};
  }
  if (id == 0 || id >= next_) {
    return {{}, failure(ErrorCode::kNotFound, "no transfer has the id " + std::to_string(id))};
  }
  if (id <= forgotten_) {
    const std::string which = "transfer " + std::to_string(id);
    return {{},
            failure(ErrorCode::kNotFound, "how " + which + " ended is forgotten: many have failed since")};
  }
  return {};
}

void TransferTable::report(std::uint64_t id, const Status& outcome) {
  const std::lock_guard lock(mutex_);
  if (pending_.erase(id) == 0 || outcome) return;
  failed_.emplace(id, outcome.error());
  if (failed_.size() <= kFailuresKept) return;
  forgotten_ = std::max(forgotten_, failed_.begin()->first);
  failed_.erase(failed_.begin());
}

void TransferTable::cancel_receives() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, pending] : pending_) {
    if (pending.kind == Kind::kReceive) pending.transfer.cancel();
  }
}

void TransferTable::cancel_all() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [id, pending] : pending_) pending.transfer.cancel();
}

Result<std::shared_ptr<Completions>> Completions::create() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return failure(ErrorCode::kSystem, std::string("create an eventfd: ") + std::strerror(errno));
  return std::shared_ptr<Completions>(new Completions(fd));
}

Completions::~Completions() { close(fd_); }

void Completions::watch(const std::shared_ptr<Completions>& self, std::uint64_t id,
                        const Transfer& transfer) {
  transfer.on_done([self, id] { self->push(id); });
}

void Completions::push(std::uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    done_.push_back(id);
  }
  // Fails only when the counter is full, and then the descriptor is readable already.
  (void)eventfd_write(fd_, 1);
}

std::vector<std::uint64_t> Completions::take() {
  eventfd_t count = 0;
  (void)eventfd_read(fd_, &count);  // empty: another reader was faster
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, {});
}

}  // namespace p2p::python
