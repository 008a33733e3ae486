// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/notifications.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace p2p::engine {
namespace {

// Small enough that other messages get their turn between two pieces.
constexpr std::size_t kPieceBytes = std::size_t{16} << 10;

// A peer that announces more than this is broken, or wants our memory.
constexpr std::uint64_t kMaxBytes = std::uint64_t{4} << 30;

}  // namespace

void Notifications::send(std::string_view payload, std::shared_ptr<TransferState> state) {
  Status refused;
  {
    // Held over the pieces: those of two notifications must not mix.
    MutexLock lock(mutex_);
    if (closed_) {
      refused = tl::unexpected(error_);
    } else if (payload.size() > kMaxBytes) {
      refused =
          fail(ErrorCode::kInvalidArgument, "notify with {} bytes: at most {}", payload.size(), kMaxBytes);
    } else {
      const std::uint64_t id = next_++;
      open_.emplace(id, state);
      std::size_t offset = 0;
      do {
        const ByteView piece = as_bytes(payload.substr(offset, kPieceBytes));
        words_->say(wire::Notify{id, payload.size(), offset, {}}, std::span(&piece, 1));
        offset += piece.size();
      } while (offset < payload.size());
      words_->gather();
    }
  }
  if (!refused) return state->finish(std::move(refused));
  if (words_->assists()) {
    state->set_poll([words = std::weak_ptr(words_)](const TransferState& one, auto deadline) {
      if (const auto self = words.lock()) self->assist([&] { return one.done(); }, deadline, false);
    });
  }
  words_->flush_if_due();
}

std::vector<std::string> Notifications::take() {
  MutexLock lock(mutex_);
  return std::exchange(came_, {});
}

Status Notifications::on(const wire::Notify& piece) {
  MutexLock lock(mutex_);
  if (piece.total > kMaxBytes || piece.offset != coming_.size() ||
      piece.piece.size() > piece.total - piece.offset || (piece.piece.empty() && piece.total != 0)) {
    return fail(ErrorCode::kProtocol, "a notification's piece of {} bytes at {} of {}", piece.piece.size(),
                piece.offset, piece.total);
  }
  coming_.append(reinterpret_cast<const char*>(piece.piece.data()), piece.piece.size());
  if (coming_.size() < piece.total) return {};
  came_.push_back(std::exchange(coming_, {}));
  ++received_;
  words_->say(wire::NotifyDone{piece.notification});
  return {};
}

void Notifications::on(const wire::NotifyDone& done, Deferred& deferred) {
  MutexLock lock(mutex_);
  while (!open_.empty() && open_.begin()->first <= done.notification) {
    deferred.finish(std::move(open_.begin()->second));
    open_.erase(open_.begin());
  }
}

std::uint64_t Notifications::sent() const {
  MutexLock lock(mutex_);
  return next_;
}

std::uint64_t Notifications::received() const {
  MutexLock lock(mutex_);
  return received_;
}

std::size_t Notifications::open() const {
  MutexLock lock(mutex_);
  return open_.size();
}

void Notifications::close(const Error& error) {
  std::map<std::uint64_t, std::shared_ptr<TransferState>> open;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    error_ = error;
    open.swap(open_);
  }
  for (const auto& [id, state] : open) state->finish(tl::unexpected(error));
}

}  // namespace p2p::engine
