// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/gated_pieces.h"

#include <iterator>
#include <utility>

namespace p2p::engine {
namespace {

// Gates that are looked at in one turn, since each look asks a driver.
constexpr std::size_t kLooks = 16;

}  // namespace

void GatedPieces::add(Piece piece, Deferred& deferred) {
  MutexLock lock(mutex_);
  if (refusal_) return piece.refuse(*refusal_, deferred);
  pieces_.push_back(std::move(piece));
  waiting_.fetch_add(1, std::memory_order_relaxed);
}

std::deque<Piece> GatedPieces::look(Deferred& deferred) {
  std::deque<Piece> pieces;
  {
    MutexLock lock(mutex_);
    pieces.swap(pieces_);
  }
  const std::size_t before = pieces.size();
  std::deque<Piece> open;
  std::deque<Piece> shut;
  std::deque<Piece> unseen;
  std::size_t looks = 0;
  for (Piece& piece : pieces) {
    if (piece.submission->doomed()) {
      piece.drop(deferred);
    } else if (looks == kLooks) {
      unseen.push_back(std::move(piece));
    } else {
      ++looks;
      const Result<bool> now = piece.submission->gate()->open();
      if (now) {
        (*now ? open : shut).push_back(std::move(piece));
      } else {
        piece.fail(now.error(), deferred);
      }
    }
  }
  // Those that were not looked at have the next turn.
  unseen.insert(unseen.end(), std::make_move_iterator(shut.begin()), std::make_move_iterator(shut.end()));
  waiting_.fetch_sub(before - unseen.size(), std::memory_order_relaxed);
  put_back(std::move(unseen), deferred);
  return open;
}

// It may have been closed while nobody saw these.
void GatedPieces::put_back(std::deque<Piece> pieces, Deferred& deferred) {
  MutexLock lock(mutex_);
  if (!refusal_) {
    pieces_.insert(pieces_.begin(), std::make_move_iterator(pieces.begin()),
                   std::make_move_iterator(pieces.end()));
    return;
  }
  waiting_.fetch_sub(pieces.size(), std::memory_order_relaxed);
  for (Piece& piece : pieces) piece.refuse(*refusal_, deferred);
}

void GatedPieces::close(const Refusal& refusal, Deferred& deferred) {
  MutexLock lock(mutex_);
  refusal_ = refusal;
  waiting_.fetch_sub(pieces_.size(), std::memory_order_relaxed);
  for (Piece& piece : pieces_) piece.refuse(refusal, deferred);
  pieces_.clear();
}

}  // namespace p2p::engine
