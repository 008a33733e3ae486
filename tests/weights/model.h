// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "p2p/weights/manifest.h"
#include "support/memory.h"

namespace p2p::testing {

/// Tensors of some `bytes` in all, whose shapes, types and cuts follow from seeds, and what each element is.
/// Seeds of 0: one tensor of bytes that is not cut.
class WeightsModel {
 public:
  WeightsModel(std::uint64_t tensors_seed, std::uint64_t bytes);

  /// Memory for shards cut as `cut_seed` says, which fill all tensors, and a manifest of it.
  struct Shards {
    weights::Manifest manifest;
    std::unique_ptr<Pages> memory;
  };
  Shards cut(std::uint64_t cut_seed) const;

  /// Sets every element to what it is in a version.
  void fill(const Shards& shards, std::uint64_t version) const;
  /// How many bytes are not.
  std::uint64_t differ(const Shards& shards, std::uint64_t version) const;

 private:
  struct Tensor {
    std::vector<std::uint64_t> shape;
    std::uint32_t element = 1;  ///< bytes
  };
  template <class Use>
  void for_each_row(const Shards& shards, Use use) const;

  std::vector<Tensor> tensors_;
};

}  // namespace p2p::testing
