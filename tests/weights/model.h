// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hardware/gpu_memory.h"
#include "p2p/weights/manifest.h"
#include "support/memory.h"

namespace p2p::testing {

/// Tensors of some `bytes` in all, whose shapes, types and cuts follow from seeds, and what each element is.
/// Seeds of 0: one tensor of elements of two bytes that is not cut.
class WeightsModel {
 public:
  WeightsModel(std::uint64_t tensors_seed, std::uint64_t bytes);

  /// Memory for shards cut as `cut_seed` says, which fill all tensors, and a manifest of it.
  struct Shards {
    weights::Manifest manifest;
    weights::Manifest on_host;  ///< the same shards in `memory`, through which those of a GPU are filled
    std::unique_ptr<Pages> memory;
    GpuMemory gpu;                 ///< of the same bytes, if any shard lies there
    std::vector<bool> gpu_tensor;  ///< whose shards do
  };
  /// `place`: "host", that of a GPU as GpuMemory has it, or "mixed:N": every other tensor on GPU N.
  Shards cut(std::uint64_t cut_seed, const std::string& place = "host") const;

  /// One of `every` elements of the version is its own, spread at random; the others are those of `base`.
  void descend(std::uint64_t version, std::uint64_t base, std::uint64_t every);
  /// How many are its own, of all tensors.
  std::uint64_t own_elements(std::uint64_t version) const;

  /// Sets every element to what it is in a version.
  void fill(const Shards& shards, std::uint64_t version) const;
  /// How many bytes are not.
  std::uint64_t differ(const Shards& shards, std::uint64_t version) const;
  /// Changes the first byte.
  void spoil(const Shards& shards) const;

 private:
  struct Tensor {
    std::vector<std::uint64_t> shape;
    std::uint32_t element = 1;  ///< bytes
  };
  struct Descent {
    std::uint64_t base = 0;
    std::uint64_t every = 1;
  };
  /// A version, its base, the base of that and so on; the last one has none.
  struct Ancestor {
    std::uint64_t version = 0;
    std::uint64_t every = 1;
  };
  using Line = std::vector<Ancestor>;
  Line line_of(std::uint64_t version) const;
  template <class Use>
  void for_each_byte(const Shards& shards, std::uint64_t version, Use use) const;
  void place(Shards& shards, const std::string& place) const;
  template <class Use>
  void for_each_row(const Shards& shards, Use use) const;

  std::vector<Tensor> tensors_;
  std::map<std::uint64_t, Descent> descents_;
};

}  // namespace p2p::testing
