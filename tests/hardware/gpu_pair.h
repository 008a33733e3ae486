// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu_side.h"

namespace p2p::testing {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::size_t kGiB = 1024 * kMiB;
constexpr std::byte kUntouched{0xee};  ///< what memory holds that nothing has come to

/// Over which transport, and whether the sides use two GPUs or share one.
struct GpuConfig {
  const char* transport = "";
  bool two = false;

  /// Why this machine cannot; empty if it can.
  std::string missing() const;

  std::string left_place() const { return "cuda:0"; }
  std::string right_place() const { return two ? "cuda:1" : "cuda:0"; }
};

/// Two processes whose endpoints are connected, the left one having dialled. Each has a little memory of its
/// GPU registered before, as programs have.
struct GpuPair {
  GpuPair(const SidePlan& plan, const std::string& left_place, const std::string& right_place);

  /// Whether both still answer.
  bool sound() const { return left.sound() && right.sound(); }

  Side left;
  Side right;
  SideMemory left_first;
  SideMemory right_first;
};

/// Connects the left side to the right one.
void connect(Side& left, Side& right);

/// Tests over each transport and pair of GPUs.
class GpuTest : public ::testing::TestWithParam<GpuConfig> {
 protected:
  void SetUp() override;

  /// One pair for all tests of a configuration, because starting CUDA takes most of their time.
  GpuPair& pair();

  /// One of their own for tests that leave none behind.
  std::unique_ptr<GpuPair> own_pair(const SidePlan& plan = {}) const;

  const GpuConfig& config() const { return GetParam(); }

  /// Whether this is the one configuration of its transport for what takes long.
  bool widest() const;
};

std::string gpu_config_name(const ::testing::TestParamInfo<GpuConfig>& info);

#define P2P_OVER_GPUS(suite)                                                                            \
  INSTANTIATE_TEST_SUITE_P(Over, suite,                                                                 \
                           ::testing::Values(GpuConfig{"cuda_ipc", false}, GpuConfig{"cuda_ipc", true}, \
                                             GpuConfig{"tcp", false}, GpuConfig{"tcp", true}),          \
                           gpu_config_name)

/// One block of a list: its place in the memory of either side.
struct Block {
  std::size_t left = 0;
  std::size_t right = 0;
  std::size_t size = 0;
};

/// Blocks of 1 to 2000 bytes, one in fifty of some ten thousand, in any order on the right; all offsets are
/// different modulo 16 and no two blocks touch. They lie from `base` on.
std::vector<Block> scattered(std::size_t count, unsigned seed, std::size_t base);

/// Bytes of memory that hold the blocks on either side.
std::size_t extent_of(const std::vector<Block>& blocks);

/// The left side's list.
std::vector<Piece> pieces_of(const std::vector<Block>& blocks, const SideMemory& left,
                             const SideMemory& right, std::uint32_t right_id);

/// Writes the blocks from left to right and reads them into other memory of the left side's; every byte of
/// both memories is looked at afterwards.
void write_and_read(GpuPair& pair, const std::string& left_place, const std::string& right_place,
                    const std::vector<Block>& blocks, std::size_t base);

}  // namespace p2p::testing
