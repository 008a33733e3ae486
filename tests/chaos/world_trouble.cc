// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What of World is about memory that turns bad, regions that are gone and children.
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "world.h"

namespace p2p::chaos {
namespace {

constexpr std::size_t kPage = 4096;

void must_be_ok(const Result<std::string>& answer, const char* what) {
  if (!answer) throw std::runtime_error(fmt::format("{}: {}", what, answer.error().message));
}

}  // namespace

// A free one that meets bad pages.
Cell* World::pick_bad() {
  const auto& all = bad_.all();
  if (all.empty()) return nullptr;
  const BadPages& pages = all[dice_.between(0, all.size() - 1)];
  for (Cell& cell : arenas_[pages.side].cells()) {
    const bool meets = BadMemory::stops(pages, &cell, 0, cell.size, true);
    if (meets && cell.user == nullptr && regions_[cell.side][cell.region] == Region::kUp) return &cell;
  }
  return nullptr;
}

// Null where memory does not allow it.
std::pair<Cell*, Cell*> World::pick_both(std::size_t side, bool message, const Mix& mix) {
  constexpr std::array<std::size_t, 4> kSizes{4096, 4096, std::size_t{64} << 10, std::size_t{1} << 20};
  const std::size_t size = kSizes[dice_.between(0, 3)];
  const auto with = [&](Cell* one) {
    Cell* const other = pick(1 - one->side, one->size);
    return one->side == side ? std::pair(one, other) : std::pair(other, one);
  };
  if (mix.bad_one_in != 0 && dice_.one_in(mix.bad_one_in)) {
    if (Cell* const bad = pick_bad()) return with(bad);
  }
  if (!message && mix.gone_one_in != 0 && dice_.one_in(mix.gone_one_in)) {
    if (Cell* const gone = pick(dice_.between(0, 1), size, Region::kDown)) return with(gone);
  }
  Cell* const here = pick(side, size);
  return {here, pick(1 - side, size)};
}

// What must fail has not.
void World::expect_due_failure(const Operation& operation) const {
  if (operation.changed || !(operation.bad || operation.region_gone)) return;
  throw std::runtime_error(fmt::format("operation {}, a {} by worker {}, was done {}", operation.number,
                                       operation.name(), operation.side,
                                       operation.bad ? "over bad memory" : "with a region that is gone"));
}

void World::spoil() {
  constexpr std::array kHows{testing::Bad::kReadOnly, testing::Bad::kProtected, testing::Bad::kCut,
                             testing::Bad::kUnmapped};
  const std::size_t side = dice_.between(0, 1);
  const std::vector<Cell>& cells = arenas_[side].cells();
  const Cell& cell = cells[dice_.between(0, cells.size() - 1)];
  // At most 8, so that nothing that the process maps comes to lie in a hole.
  const std::size_t from = (cell.offset + dice_.between(0, cell.size - 1)) / kPage * kPage;
  const std::size_t to = std::min(from + kPage * dice_.between(1, 8), Board::kArenaBytes);
  const BadPages pages{side, from, to, kHows[dice_.between(0, kHows.size() - 1)]};
  for (const BadPages& one : bad_.all()) {
    if (one.side == side && one.from < to && from < one.to) return;
  }
  const auto stopped = [&](const auto& one) { return BadMemory::stops(pages, *one); };
  for (const auto& one : flying_) {
    if (one->is_short() && stopped(one)) return;
  }
  for (const auto& one : flying_) {
    if (!stopped(one)) continue;
    for (const auto& other : flying_) other->changed |= other->number == one->number;
  }
  must_be_ok(
      workers_[side]->call(fmt::format("spoil {} {} {}", from, to - from, static_cast<unsigned>(pages.how))),
      "spoil");
  bad_.add(pages);
}

void World::mend(std::size_t side) {
  for (const auto& one : flying_) one->changed |= one->bad;
  for (const BadPages& pages : bad_.all()) {
    if (pages.side != side) continue;
    must_be_ok(workers_[side]->call(fmt::format("mend {} {}", pages.from, pages.to - pages.from)), "mend");
  }
  bad_.clear(side);
}

void World::fork(std::size_t side, std::chrono::milliseconds life) {
  must_be_ok(workers_[side]->call(fmt::format("fork {}", life.count())), "fork");
}

void World::expect_children_right(bool all) {
  for (auto& worker : workers_) must_be_ok(worker->call(fmt::format("children {}", all ? 1 : 0)), "fork");
}

void World::expect_channels_kept() {
  for (auto& worker : workers_) {
    const auto lost = worker->call("lost");
    if (!lost || *lost != "0")
      throw std::runtime_error(fmt::format("channels were lost: {}", lost.value_or("?")));
  }
}

void World::expect_stale(std::size_t side, const std::string& descriptor) {
  const auto imported = workers_[1 - side]->call(fmt::format("import 0 0 {} 1000", descriptor));
  if (!imported && imported.error().code == ErrorCode::kPermissionDenied) return;
  throw std::runtime_error(fmt::format("the descriptor of a process that has ended: {}",
                                       imported ? "imported" : imported.error().message));
}

}  // namespace p2p::chaos
