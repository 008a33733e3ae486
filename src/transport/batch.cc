// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/batch.h"

#include <algorithm>
#include <array>

#include "transport/registration.h"

namespace p2p {

Status check_alive(const Batch& batch) {
  // Segments of few regions take turns: each region is asked once, not each segment.
  std::array<const Registration*, 8> asked{};
  std::size_t next = 0;
  Status status;
  batch.for_each_piece([&](const Segment& piece) {
    if (!status || std::find(asked.begin(), asked.end(), piece.registration) != asked.end()) return;
    asked[next++ % asked.size()] = piece.registration;
    status = piece.registration->check_alive();
  });
  return status;
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
