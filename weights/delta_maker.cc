// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "delta_maker.h"

#include <utility>

#include "p2p/digest.h"

namespace p2p::weights {

DeltaMaker::DeltaMaker(const Endpoint& endpoint, Jobs& jobs, Holding& holding, VersionMemory fresh,
                       std::unique_ptr<Pieces> base_pieces, const Lent& base_lent)
    : endpoint_(endpoint),
      jobs_(jobs),
      holding_(holding),
      fresh_(fresh),
      base_pieces_(std::move(base_pieces)),
      base_lent_(base_lent),
      grids_(grids_of(holding.demand())) {}

Result<DeltaMaker::Made> DeltaMaker::make(std::uint32_t chunk, Room& room) const {
  const std::uint64_t begin = holding_.demand().begin(chunk), end = holding_.demand().end(chunk);
  Status read = base_lent_.gather(endpoint_, base_pieces_->within(begin, end), room.base);
  if (read) read = fresh_.lent->gather(endpoint_, fresh_.pieces->within(begin, end), room.fresh);
  if (!read) return tl::unexpected(std::move(read.error()));
  auto delta = encode_delta(room.base, room.fresh, grids_[chunk], most_of_delta(end - begin));
  return Made{p2p::digest(room.fresh), delta ? std::move(*delta) : std::string()};
}

Result<bool> DeltaMaker::step() {
  bool any = false;
  const std::uint32_t chunk = holding_.count() + static_cast<std::uint32_t>(making_.size());
  if (chunk < holding_.demand().chunks()) {
    auto job = jobs_.start([this, chunk](Room& room) { return make(chunk, room); });
    any = job.valid();
    if (any) making_.push_back(std::move(job));
  }
  // After the start: the room of what ends here is that of the next class, if there is one.
  while (!making_.empty() && making_.front().done()) {
    const auto made = making_.front().take();
    making_.pop_front();
    if (!made) return tl::unexpected(made.error());
    holding_.add(holding_.count(), made->digest, made->delta);
    any = true;
  }
  return any;
}

}  // namespace p2p::weights
