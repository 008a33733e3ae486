// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "kernels/copy.h"

namespace p2p::kernels {
namespace {

// One warp moves a piece of this size with 16 bytes a lane and 8 loads under way.
constexpr std::uint64_t kPiece = 4096;
constexpr unsigned kWarps = 16;

}  // namespace

CopyShape shape_of(const CopyList& list, const Grid& grid, unsigned processors) {
  CopyShape shape;
  if (list.count == 0) return shape;
  const unsigned most = grid.ctas != 0 ? grid.ctas : processors;
  const std::uint64_t pieces = std::max(list.total / kPiece, std::uint64_t{list.count});
  // Enough warps for the largest block, unless that would leave most of them idle on the small ones.
  const std::uint64_t largest = std::max<std::uint64_t>(1, (list.largest + kPiece - 1) / kPiece);
  const std::uint64_t fair = std::max<std::uint64_t>(1, 4 * pieces / list.count);
  shape.split = std::min({largest, fair, std::uint64_t{most} * kWarps});
  const std::uint64_t warps = list.count * shape.split;
  // Few pieces spread over many multiprocessors rather than filling one: one warp alone is far from what a
  // multiprocessor can move.
  shape.ctas = static_cast<unsigned>(std::clamp<std::uint64_t>((warps + 3) / 4, 1, most));
  return shape;
}

void copy_on_host(std::span<const CopyBlock> blocks) {
  for (const CopyBlock& block : blocks) {
    if (block.bytes != 0) std::memcpy(block.target, block.source, block.bytes);
  }
}

}  // namespace p2p::kernels
