// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/batch.h"

#include <algorithm>
#include <utility>

#include "transport/registration.h"

namespace p2p {

void AliveCheck::ask(const Registration* registration) {
  if (!status || std::find(asked_.begin(), asked_.end(), registration) != asked_.end()) return;
  asked_[next_++ % asked_.size()] = registration;
  status = registration->check_alive();
}

Status check_alive(const Batch& batch) {
  AliveCheck check;
  batch.for_each_piece([&](const Segment& piece) { check.ask(piece.registration); });
  return std::move(check.status);
}

bool starts_on_device(const Batch& batch) {
  bool on_device = false;
  const Registration* last = nullptr;
  batch.for_each_piece([&](const Segment& piece) {
    if (piece.registration == last) return;
    last = piece.registration;
    on_device = on_device || last->info().place.kind == MemoryKind::kCuda;
  });
  return on_device;
}

}  // namespace p2p
