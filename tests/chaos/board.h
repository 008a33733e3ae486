// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

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

  /// Makes it.
  Board();

  /// Another process's, by its path.
  explicit Board(const std::string& path);

  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  /// For processes of this host, while this one lives.
  std::string path() const;

  Ending& ending(std::size_t slot) { return endings_[slot]; }
  std::span<std::byte> arena() const { return arena_; }

 private:
  void map(int fd);

  int fd_ = -1;
  std::span<Ending> endings_;
  std::span<std::byte> arena_;
};

}  // namespace p2p::chaos
