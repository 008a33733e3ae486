// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/batch.h"

#include <algorithm>
#include <array>
#include <utility>

#include "transport/registration.h"

namespace p2p {

namespace {

/// Segments of few regions take turns: each region is asked once, not each segment.
class AliveCheck {
 public:
  void ask(const Registration* registration) {
    if (!status || std::find(asked_.begin(), asked_.end(), registration) != asked_.end()) return;
    asked_[next_++ % asked_.size()] = registration;
    status = registration->check_alive();
  }

  Status status;

 private:
  std::array<const Registration*, 8> asked_{};
  std::size_t next_ = 0;
};

}  // namespace

Status check_alive(const Batch& batch) {
  AliveCheck check;
  batch.for_each_piece([&](const Segment& piece) { check.ask(piece.registration); });
  return std::move(check.status);
}

Status check_alive(std::span<const Segment> pieces) {
  AliveCheck check;
  for (const Segment& piece : pieces) check.ask(piece.registration);
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
