// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "source.h"

#include <algorithm>
#include <utility>

namespace p2p::weights {

namespace {

using namespace std::chrono_literals;

// A machine that is busy with other things lets a member stand still for some tenths of a second.
constexpr std::chrono::nanoseconds kLeastPatience = 500ms;
constexpr std::chrono::nanoseconds kMostPatience = 2s;
constexpr std::uint64_t kSlowBytesPerMs = 8 << 10;
constexpr int kTimesSlowest = 8;

std::chrono::milliseconds at_slow_rate(std::uint64_t bytes) {
  return std::chrono::milliseconds(bytes / kSlowBytesPerMs);
}

}  // namespace

std::chrono::nanoseconds Pace::patience(std::uint64_t bytes) const {
  const std::chrono::nanoseconds most = kMostPatience + at_slow_rate(bytes);
  return slowest.count() == 0 ? most : std::clamp(kTimesSlowest * slowest, kLeastPatience, most);
}

Source::Source(Node& node, const Holding& into, const Member& who)
    : member(who), node_(node), into_(into), have_(into.demand().chunks()) {}

void Source::lose() {
  lost_ = true;
  asked_ = false;
  link_ = nullptr;
  reading_ = nullptr;
  table_.reset();
  pieces_ = nullptr;
  regions_.clear();
  imported_.clear();
  have_.assign(have_.size(), false);
  count_ = useful_ = 0;
  gives_deltas_ = true;
  deltas_.clear();
}

void Source::follow() {
  if (!link_) link_ = node_.dial(member);
  if (asked_ || !link_->open) return;
  asked_ = true;
  node_.send(link_, Follow{into_.key()});
}

void Source::laid_out(const Layout& layout) {
  if (table_) return;
  table_ = layout.table;
  gives_deltas_ = layout.deltas;
}

void Source::has_delta(const Delta& delta) {
  if (delta.chunk < have_.size()) deltas_[delta.chunk] = delta;
}

const Delta* Source::delta(std::uint32_t chunk) const {
  const auto found = deltas_.find(chunk);
  return found == deltas_.end() ? nullptr : &found->second;
}

bool Source::has_come(const ChunkDigest& row) {
  if (row.chunk >= have_.size()) return false;
  if (have_[row.chunk]) return true;
  have_[row.chunk] = true;
  ++count_;
  useful_ += into_.has(row.chunk) ? 0 : 1;
  return true;
}

Result<bool> Source::ready() {
  if (pieces_) return true;
  if (!table_ || !link_ || !link_->open) return false;
  if (!reading_) {
    auto reading = TableRead::start(node_, link_, *table_);
    if (!reading) return tl::unexpected(std::move(reading.error()));
    reading_ = std::move(*reading);
    reading_since_ = Pace::Clock::now();
  }
  if (!reading_->done()) return false;
  const auto reading = std::move(reading_);
  if (auto status = reading->status(); !status) return tl::unexpected(std::move(status.error()));
  if (auto taken = take_table(reading->bytes()); !taken) return tl::unexpected(std::move(taken.error()));
  imported_.resize(regions_.size());
  return true;
}

bool Source::keeps_waiting(Pace::Clock::time_point now) const {
  return reading_ && now - reading_since_ > kLeastPatience + at_slow_rate(reading_->bytes().size());
}

Status Source::take_table(const std::string& bytes) {
  if (!is_publisher()) {
    auto held = HeldTable::decode(bytes, into_.demand().bytes);
    if (!held) return tl::unexpected(std::move(held.error()));
    pieces_ = std::make_unique<HeldPieces>(std::move(held->pieces));
    regions_ = std::move(held->regions);
    return {};
  }
  auto owned = OwnedTable::decode(bytes);
  if (!owned) return tl::unexpected(std::move(owned.error()));
  owned_ = std::move(*owned);
  auto pieces = OwnedPieces::make(owned_.owned, into_.demand());
  if (!pieces) return tl::unexpected(std::move(pieces.error()));
  pieces_ = std::move(*pieces);
  regions_ = std::move(owned_.regions);
  return {};
}

Result<Transfer> Source::read(std::uint32_t chunk, const Lent& lent, const std::vector<Piece>& into) {
  const Demand& demand = into_.demand();
  std::vector<LocalSpan> local;
  std::vector<RemoteSpan> remote;
  Status status;
  const auto from = pieces_->within(demand.begin(chunk), demand.end(chunk));
  for_each_pair(from, into, [&](std::uint64_t theirs, std::uint64_t mine, std::uint64_t bytes) {
    if (!status) return;
    const std::size_t region = region_of(regions_, theirs, bytes);
    if (region == regions_.size()) {
      status = tl::unexpected(Error{ErrorCode::kProtocol, "a piece lies in none of the peer's regions"});
      return;
    }
    if (!imported_[region]) {
      auto id = link_->connection.import_region(regions_[region]);
      if (!id) {
        status = tl::unexpected(std::move(id.error()));
        return;
      }
      imported_[region] = *id;
    }
    local.push_back(lent.span(mine, bytes));
    remote.push_back({*imported_[region], theirs, bytes});
  });
  if (!status) return tl::unexpected(std::move(status.error()));
  return link_->connection.read(local, remote);
}

}  // namespace p2p::weights
