// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/replay_log.h"

#include <utility>

#include "base/error.h"

namespace p2p::engine {

void ReplayLog::keep(std::size_t most) {
  most_ = most;
  fit();
}

void ReplayLog::add(Bytes frame) {
  bytes_ += cost(frame);
  frames_.push_back(std::move(frame));
  fit();
}

void ReplayLog::fit() {
  if (bytes_ <= most_) return;
  first_ = next();
  frames_.clear();
  bytes_ = 0;
}

Status ReplayLog::confirm(std::uint64_t handled) {
  if (handled > next()) {
    return fail(ErrorCode::kProtocol, "the peer says that it has handled {} messages of {}", handled, next());
  }
  for (; first_ < handled; ++first_) {
    bytes_ -= cost(frames_.front());
    frames_.pop_front();
  }
  return {};
}

std::optional<std::vector<Bytes>> ReplayLog::after(std::uint64_t handled) const {
  if (handled < first_ || handled > next()) return std::nullopt;
  const auto from = frames_.begin() + static_cast<std::ptrdiff_t>(handled - first_);
  return std::vector<Bytes>(from, frames_.end());
}

}  // namespace p2p::engine
