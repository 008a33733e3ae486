// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "p2p/memory.h"
#include "p2p/result.h"
#include "support/process.h"

namespace p2p::testing {

/// One span of a list as both processes write it to their window: bytes of the side's memory `memory` from
/// `offset` on, and where in the peer's address space they belong. `send` and `recv` take no notice of the
/// remote half.
struct Piece {
  std::uint32_t memory = 0;
  std::uint32_t remote = 0;
  std::uint64_t offset = 0;
  std::uint64_t address = 0;
  std::uint64_t size = 0;
};

/// Bytes that this process and one side both map: lists and contents go through it.
class Window {
 public:
  static constexpr std::size_t kBytes = std::size_t{64} << 20;

  /// A new one, whose descriptor the programs that are started inherit.
  Window();
  /// One that was inherited.
  explicit Window(int descriptor);
  Window(Window&& other) noexcept;
  Window& operator=(Window&& other) noexcept;
  ~Window();

  int descriptor() const { return descriptor_; }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  void map();
  int descriptor_;
  std::span<std::byte> bytes_;
};

/// How a side's endpoint is made.
struct SidePlan {
  std::string transport;  ///< empty: all
  int blocks = -1;        ///< Options::gpu_blocks; -1: the default
  std::chrono::milliseconds keepalive{1000};
  std::string visible;    ///< CUDA_VISIBLE_DEVICES of the process; empty: all
  bool own_pids = false;  ///< the process has a PID namespace of its own, as in a container
};

/// What became of a number of transfers.
struct Outcomes {
  std::uint64_t good = 0;
  std::uint64_t bad = 0;
  std::uint64_t unfinished = 0;
  std::uint64_t silent = 0;  ///< errors without a sentence
  std::string codes;         ///< the different ones of errors, in order of first appearance, by commas
  std::string message;       ///< of the first error, or of one that says that memory is not free
};

/// A process (this program, run with `--serve`) with an endpoint, its memory and one connection at a time,
/// which does what it is told (gpu_side_main.cc). This process itself moves nothing.
class Side {
 public:
  explicit Side(const SidePlan& plan);

  std::uint16_t port() const { return port_; }

  /// Sends a command without waiting for its answer.
  void begin(const std::string& command);

  /// The answer's words after "ok", or its error.
  Result<std::string> finish();

  /// What was begun and not finished before is finished first.
  Result<std::string> call(const std::string& command);

  /// The answer's number; the test fails if the answer is an error.
  std::uint64_t number(const std::string& command);

  /// Starts `times` transfers of one list, by "write", "read", "send" or "recv"; the first one's number.
  std::uint64_t post(const std::string& operation, std::span<const Piece> pieces, std::uint64_t times = 1);

  /// Waits for a transfer: its bytes.
  Result<std::uint64_t> wait(std::uint64_t transfer);

  /// One transfer from its start to its end.
  Status transfer(const std::string& operation, std::span<const Piece> pieces);

  Outcomes outcomes(std::uint64_t first, std::uint64_t count, std::chrono::milliseconds within);

  const Window& window() const { return window_; }

  /// SIGSTOP, and waits until none of its threads runs; SIGCONT.
  void stop() const { process_.stop(); }
  void go_on() const { process_.go_on(); }

  /// SIGKILL; its memories need no more care.
  void kill();

  /// Whether it answers as it should.
  bool sound() const { return sound_; }

 private:
  Result<std::string> take_answer();

  Window window_;
  Process process_;
  std::uint16_t port_ = 0;
  int begun_ = 0;
  bool sound_ = true;
};

/// An allocation of a side, of which [base, base + size) is registered. Offsets count from the allocation's
/// start, and what lies around the region is part of it. Let go of at the end. The side outlives it.
class SideMemory {
 public:
  /// `place`: see GpuMemory.
  SideMemory(Side& side, const std::string& place, std::size_t size, std::size_t base = 0);
  SideMemory(SideMemory&& other) noexcept;
  SideMemory& operator=(SideMemory&&) = delete;
  ~SideMemory();

  std::uint32_t index() const { return index_; }
  std::size_t extent() const { return extent_; }  ///< bytes of the allocation
  std::uint64_t address(std::size_t offset) const { return address_ + offset; }

  /// The region's number at the other side, after it has been told.
  std::uint32_t imported_by(Side& other) const;

  /// How long the other side takes until it can use it, which it is told of for the first time.
  std::chrono::microseconds import_time(Side& other) const;

  void put(std::size_t offset, std::span<const std::byte> bytes) const;
  void set(std::size_t offset, std::size_t size, std::byte value) const;
  void set(std::byte value) const { set(0, extent_, value); }

  /// Makes byte `i` of the allocation that of the pattern of `seed` at `i`.
  void fill(std::uint64_t seed) const;

  ::testing::AssertionResult holds(std::size_t offset, std::span<const std::byte> bytes) const;
  ::testing::AssertionResult holds_pattern(std::size_t offset, std::size_t size, std::uint64_t seed,
                                           std::size_t from) const;
  ::testing::AssertionResult is_set(std::size_t offset, std::size_t size, std::byte value) const;

 private:
  template <class Compare>
  ::testing::AssertionResult compare(std::size_t offset, std::size_t size, Compare&& differs) const;

  Side* side_;
  std::uint32_t index_ = 0;
  std::size_t extent_ = 0;
  std::uint64_t address_ = 0;
  RegionDescriptor descriptor_;
};

/// The bytes of a pattern from a position on. A shift by anything that occurs in tests shows.
void copy_pattern(std::span<std::byte> into, std::uint64_t seed, std::size_t from);

}  // namespace p2p::testing
