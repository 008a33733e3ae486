// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/staging.h"

#include <utility>

#include "base/safe_copy.h"

namespace p2p::device {
namespace {

// However many slots others have, a stream goes on with these: two, so that one is filled while the other is
// sent.
constexpr std::size_t kLeast = 2;

}  // namespace

Staging::Staging(std::shared_ptr<StagingPool> pool, const Share& share, bool expected)
    : pool_(std::move(pool)), share_(share), copiers_(pool_->copiers()) {
  if (expected) expect();
}

void Staging::expect() {
  if (!counted_.load(std::memory_order_relaxed) && !counted_.exchange(true)) pool_->add_stream();
}

Staging::~Staging() {
  close();
  for (const Slot& slot : slots_) {
    if (slot.data_ != nullptr) pool_->give_back(slot.data_);
  }
  if (counted_) pool_->remove_stream();
}

Result<Staging::Slot*> Staging::take(Use use) {
  expect();
  std::size_t& held = held_[static_cast<std::size_t>(use)];
  if (held >= share_.slots[static_cast<std::size_t>(use)]) return nullptr;
  const auto data = pool_->take(use == Use::kArrival || held < kLeast);
  if (!data) return tl::unexpected(data.error());
  if (*data == nullptr) return nullptr;
  if (spare_.empty()) spare_.push_back(&slots_.emplace_back());
  Slot* const slot = spare_.back();
  spare_.pop_back();
  slot->data_ = *data;
  slot->use_ = use;
  slot->copies_ = {};
  ++held;
  return slot;
}

void Staging::give_back(Slot& slot) {
  --held_[static_cast<std::size_t>(slot.use_)];
  pool_->give_back(slot.data_);
  slot.data_ = nullptr;
  spare_.push_back(&slot);
}

void Staging::start(Slot& slot, std::span<const StagedPiece> pieces, bool pack) {
  std::byte* staged = slot.data_;
  Job::Part part;
  slot.copies_ = {};
  for (const StagedPiece& piece : pieces) {
    std::byte* const target = pack ? staged : piece.data;
    const std::byte* const source = pack ? piece.data : staged;
    staged += piece.bytes;
    if (piece.device < 0) {
      const iovec theirs{piece.data, piece.bytes};
      const std::size_t copied =
          pack ? copy_in(target, {&theirs, 1}, piece.bytes) : copy_out({&theirs, 1}, source, piece.bytes);
      if (copied == piece.bytes) continue;
      return slot.copies_.refuse(bad_memory(pack ? "read" : "write to", {&theirs, 1}));
    }
    if (part.copier == nullptr || part.copier->device() != piece.device) {
      const auto found = slot.copies_.part(copiers_, piece.device);
      if (!found) return slot.copies_.refuse(found.error());
      part = *found;
    }
    part.add({source, target, piece.bytes}, part.copier->ways(share_.standby_bytes));
  }
  slot.copies_.start();
}

}  // namespace p2p::device
