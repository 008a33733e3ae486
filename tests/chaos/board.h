// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace p2p::chaos {

/// How one operation ended, written by the worker's callback and read by the world.
struct Ending {
  static constexpr std::uint32_t kUnderWay = 0;
  static constexpr std::uint32_t kEnded = 1;  ///< set last
  static constexpr std::int32_t kSuccess = -1;

  std::atomic<std::uint32_t> state;
  std::int32_t code;  ///< an ErrorCode, or kSuccess
  std::uint64_t bytes;
  std::array<char, 240> message;  ///< text that ends with 0
};

/// Memory that the world shares with one worker: endings, and the arena whose bytes are transferred. It
/// outlives the worker, so that what a killed one left can be looked at. Not copied, not moved.
class Board {
 public:
  static constexpr std::size_t kEndings = 256;
  static constexpr std::size_t kArenaBytes = std::size_t{6} << 20;

  /// Makes it. A worker with `gpu` has the arena as memory of an emulated GPU (tests/softgpu): a kind, and a
  /// device's number, as in "mapped:1". Empty: it is host memory there, too.
  explicit Board(const std::string& gpu);

  /// Another process's, by what it calls `name`.
  struct Worker {};
  Board(Worker worker, const std::string& name);

  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  /// For processes of this host, while this one lives.
  std::string name() const;

  Ending& ending(std::size_t slot) { return endings_[slot]; }

  /// Where it is memory of a GPU its addresses are the GPU's.
  std::span<std::byte> arena() const { return arena_; }

  /// Maps whole pages of an arena in host memory again, whatever this process has made of them.
  void mend(std::size_t offset, std::size_t size) const;

 private:
  void map_endings();
  void map_arena();

  std::string gpu_;
  std::vector<int> files_;  // of the endings, and of the arena's parts
  std::span<Ending> endings_;
  std::span<std::byte> arena_;
  std::span<std::byte> mapped_;  // the arena, unless it is memory of a GPU here
};

}  // namespace p2p::chaos
