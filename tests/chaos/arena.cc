// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "support/memory.h"

namespace p2p::chaos {
namespace {

constexpr std::size_t kGuard = 40;

/// An operation, and what it was to put into the byte at `at`.
std::string described(const Operation* operation, std::size_t at, std::size_t cell) {
  if (operation == nullptr) return "nothing";
  std::string puts = "nothing there";
  std::size_t done = 0;
  for (const Block& block : operation->blocks) {
    const std::size_t from = cell + operation->offset_in_target(block);
    if (at >= from && at < from + block.size) {
      puts = fmt::format("{:#04x} there", static_cast<unsigned>(operation->then[done + at - from]));
    }
    done += block.size;
  }
  return fmt::format("operation {}, a {} by worker {} over connection {} in {} blocks{}{}, that puts {}",
                     operation->number, operation->name(), operation->side, operation->connection,
                     operation->blocks.size(), operation->cancelled ? ", cancelled" : "",
                     operation->region_leaves ? ", its region taken back" : "", puts);
}

}  // namespace

Arena::Arena(std::string name, std::size_t side, Board& board)
    : name_(std::move(name)), side_(side), bytes_(board.arena()), now_(bytes_.size()), seed_(side << 32) {
  for (std::size_t region = 0; region != kRegions; ++region) add_cells(region);
  testing::fill(now_, seed_++);
  std::memcpy(bytes_.data(), now_.data(), now_.size());
}

void Arena::add_cells(std::size_t region) {
  std::size_t offset = region_offset(region) + kGuard;
  const auto add = [&](std::size_t count, std::size_t size) {
    for (std::size_t i = 0; i != count; ++i, offset += size + kGuard) {
      cells_.push_back({side_, region, offset, size});
    }
  };
  add(16, 4096);
  add(5, std::size_t{64} << 10);
  add(1, std::size_t{1} << 20);
}

void Arena::refill(const Cell& cell) {
  const std::span bytes = std::span(now_).subspan(cell.offset, cell.size);
  testing::fill(bytes, seed_++);
  std::memcpy(&bytes_[cell.offset], bytes.data(), bytes.size());
}

std::vector<std::byte> Arena::gather(const Operation& operation) const {
  std::vector<std::byte> bytes;
  for (const Block& block : operation.blocks) {
    const bool written =
        operation.kind == Operation::Kind::kWrite || operation.kind == Operation::Kind::kSend;
    const std::size_t from =
        written ? operation.local->offset + block.local : operation.remote->offset + block.remote;
    bytes.insert(bytes.end(), &now_[from], &now_[from] + block.size);
  }
  return bytes;
}

void Arena::expect_landed(const Operation& operation) {
  expect_around(operation);
  check_either(operation, true);
}

void Arena::expect_either(const Operation& operation) {
  expect_around(operation);
  check_either(operation, false);
}

void Arena::check_either(const Operation& operation, bool landed) const {
  std::size_t done = 0;
  for (const Block& block : operation.blocks) {
    const std::size_t from = operation.target()->offset + operation.offset_in_target(block);
    const std::byte* const then = &operation.then[done];
    done += block.size;
    if (std::memcmp(&bytes_[from], then, block.size) == 0) continue;
    for (std::size_t i = 0; i != block.size; ++i) {
      // Read once: it may change between the two.
      const std::byte byte = *const_cast<const volatile std::byte*>(&bytes_[from + i]);
      if (byte == then[i] || (!landed && byte == now_[from + i])) continue;
      if (!landed && byte == std::byte{} && operation.may_end_in_zeros()) continue;
      const Cell& cell = *operation.target();
      wrong(from + i, fmt::format("{} of {}, byte {} of a block of {}; before it {}",
                                  landed ? "not the end" : "neither old nor new",
                                  described(&operation, from + i, cell.offset), i, block.size,
                                  described(cell.last.get(), from + i, cell.offset)));
    }
  }
}

// The blocks lie in any order, and do not overlap.
void Arena::expect_around(const Operation& operation) const {
  const Cell& cell = *operation.target();
  std::vector<std::pair<std::size_t, std::size_t>> taken;
  for (const Block& block : operation.blocks) {
    const std::size_t from = cell.offset + operation.offset_in_target(block);
    taken.emplace_back(from, from + block.size);
  }
  std::sort(taken.begin(), taken.end());
  std::size_t at = cell.offset;
  for (const auto& [from, to] : taken) {
    expect_same(at, from, fmt::format("around the blocks of operation {}", operation.number));
    at = to;
  }
  expect_same(at, cell.offset + cell.size,
              fmt::format("behind the blocks of operation {}", operation.number));
}

void Arena::expect_all() {
  std::size_t at = 0;
  for (const Cell& cell : cells_) {
    expect_same(at, cell.offset, "between cells");
    at = cell.offset;
    if (cell.user != nullptr && cell.user->target() == &cell) {
      expect_either(*cell.user);
      at += cell.size;
    }
  }
  expect_same(at, bytes_.size(), "behind the cells");
}

void Arena::expect_same(std::size_t from, std::size_t to, const std::string& what) const {
  if (std::memcmp(&bytes_[from], &now_[from], to - from) == 0) return;
  const auto [real, model] = std::mismatch(&bytes_[from], &bytes_[from] + (to - from), &now_[from]);
  static_cast<void>(model);
  wrong(static_cast<std::size_t>(real - bytes_.data()), what);
}

void Arena::wrong(std::size_t at, const std::string& what) const {
  throw std::runtime_error(fmt::format("{}: the byte at {:#x} is {:#04x}, not {:#04x}: {}", name_, at,
                                       static_cast<unsigned>(bytes_[at]), static_cast<unsigned>(now_[at]),
                                       what));
}

}  // namespace p2p::chaos
