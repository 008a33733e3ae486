// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream/write_window.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "transport/tcp/stream/frame.h"

namespace p2p::tcp {
namespace {

// Enough to fill a long fat pipe, little enough that one slow stream does not hold a transfer back.
constexpr std::uint64_t kWindowBytes = 32U << 20;

}  // namespace

bool WriteWindow::takes(std::uint64_t bytes) const {
  return queued_ + writes_.size() + acknowledged_.size() < kMaxWrites &&
         (bytes_in_flight_ == 0 || bytes_in_flight_ + bytes <= kWindowBytes) &&
         (bytes_unsent_ == 0 || bytes_unsent_ + bytes <= most_unsent_);
}

void WriteWindow::queue(std::uint64_t bytes) {
  ++queued_;
  bytes_in_flight_ += bytes;
  bytes_unsent_ += bytes;
}

void WriteWindow::withdraw(BatchId id, std::uint64_t bytes) {
  --queued_;
  bytes_in_flight_ -= bytes;
  bytes_unsent_ -= bytes;
  completions_.push_back({id, p2p::fail(ErrorCode::kCancelled, "cancelled before any of it was sent")});
}

std::uint64_t WriteWindow::start(BatchId id, std::uint64_t bytes) {
  --queued_;
  writes_.push_back({.id = id, .bytes = bytes, .outcome = {}});
  return first_ + writes_.size() - 1;
}

Status WriteWindow::acknowledged(std::uint64_t number) {
  if (number > sent_) {
    return p2p::fail(ErrorCode::kProtocol, "the peer acknowledges write {} of {}", number, sent_);
  }
  for (; first_ <= number; ++first_) {
    acknowledged_.push_back(std::move(writes_.front()));
    writes_.pop_front();
  }
  return {};
}

Status WriteWindow::refused(std::uint64_t number, const Error& why) {
  if (number < first_ || number > sent_) {
    return p2p::fail(ErrorCode::kProtocol, "the peer refuses write {}, which is not under way", number);
  }
  writes_[number - first_].outcome = tl::unexpected(why);
  return {};
}

void WriteWindow::release(std::uint64_t sends) {
  while (!acknowledged_.empty() && acknowledged_.front().held_by <= sends) {
    Write& write = acknowledged_.front();
    bytes_in_flight_ -= write.bytes;
    completions_.push_back({write.id, std::move(write.outcome)});
    acknowledged_.pop_front();
  }
}

bool WriteWindow::has(BatchId id) const {
  return std::any_of(writes_.begin(), writes_.end(), [id](const Write& write) { return write.id == id; });
}

void WriteWindow::fail(const Error& why) {
  for (Write& write : acknowledged_) completions_.push_back({write.id, std::move(write.outcome)});
  for (const Write& write : writes_) completions_.push_back({write.id, tl::unexpected(why)});
  acknowledged_.clear();
  writes_.clear();
}

}  // namespace p2p::tcp
