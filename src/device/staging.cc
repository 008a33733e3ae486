// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/staging.h"

#include <cstring>
#include <utility>

namespace p2p::device {

Result<std::unique_ptr<Staging>> Staging::open(const Limits& limits) {
  std::unique_ptr<Staging> staging(new Staging(limits));
  auto memory = cuda::HostBuffer::allocate(limits.slots * limits.slot_bytes);
  if (!memory) return tl::unexpected(std::move(memory.error()));
  staging->memory_ = std::move(*memory);
  staging->slots_.resize(limits.slots);
  for (std::size_t i = limits.slots; i-- != 0;) {
    staging->slots_[i].data_ = staging->memory_.data() + i * limits.slot_bytes;
    staging->free_.push_back(&staging->slots_[i]);
  }
  return staging;
}

Staging::Slot* Staging::take() {
  if (free_.empty()) return nullptr;
  Slot* const slot = free_.back();
  free_.pop_back();
  slot->parts_.clear();
  slot->status_ = {};
  return slot;
}

void Staging::start(Slot& slot, std::span<const StagedPiece> pieces, bool pack) {
  std::byte* staged = slot.data_;
  Slot::Part part{};
  slot.status_ = {};
  for (const StagedPiece& piece : pieces) {
    std::byte* const target = pack ? staged : piece.data;
    const std::byte* const source = pack ? piece.data : staged;
    staged += piece.bytes;
    if (piece.device < 0) {
      std::memcpy(target, source, piece.bytes);
      continue;
    }
    if (part.copier == nullptr || part.copier->device() != piece.device) {
      const auto found = part_for(piece.device, slot);
      if (!found) {
        slot.status_ = tl::unexpected(found.error());
        break;
      }
      part = *found;
    }
    part.copier->add(*part.list, {source, target, piece.bytes}, true);
  }
  for (const Slot::Part& started : slot.parts_) {
    if (slot.status_) started.copier->start(*started.list);
  }
}

Result<Staging::Slot::Part> Staging::part_for(int device, Slot& slot) {
  for (const Slot::Part& part : slot.parts_) {
    if (part.copier->device() == device) return part;
  }
  std::unique_ptr<Copier>& copier = copiers_[device];
  if (!copier) {
    // As many lists as slots, so that one is always free here.
    auto opened = Copier::open(device, {.grid = limits_.grid,
                                        .bulk_bytes = limits_.bulk_bytes,
                                        .blocks = limits_.pieces,
                                        .lists = limits_.slots});
    if (!opened) return tl::unexpected(std::move(opened.error()));
    copier = std::move(*opened);
  }
  slot.parts_.push_back({copier.get(), copier->take()});
  return slot.parts_.back();
}

bool Staging::finished(Slot& slot) {
  for (const Slot::Part& part : slot.parts_) {
    if (slot.status_ && !part.copier->finished(*part.list)) return false;
  }
  for (const Slot::Part& part : slot.parts_) {
    if (slot.status_) slot.status_ = part.list->status();
    part.copier->give_back(*part.list);
  }
  slot.parts_.clear();
  return true;
}

}  // namespace p2p::device
