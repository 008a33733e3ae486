// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "p2p/result.h"

namespace p2p::weights {

/// The most dimensions of a tensor.
inline constexpr std::size_t kMaxDims = 8;

struct DType {
  std::string name;         ///< as both sides agree to write it: "bfloat16"
  std::uint32_t bytes = 0;  ///< of an element. Elements of less than a byte: name packed ones
};

/// A box of a tensor in the memory of one rank. Offsets and sizes are elements, one for each dimension.
struct Shard {
  std::uint32_t rank = 0;
  std::uint64_t address = 0;  ///< of its first element, in the rank's process
  std::span<const std::uint64_t> offset;
  std::span<const std::uint64_t> size;
  std::span<const std::int64_t> strides;  ///< bytes; given empty: row after row without gaps
};

/// The tensors of one side, in the order in which they shall move, and who holds or wants which box of each.
class Manifest {
 public:
  /// Adds a tensor and says its number, which counts from 0. kInvalidArgument: the name is empty or known,
  /// the type has no bytes, there are too many dimensions or more bytes than 64 bits can count.
  Result<std::uint32_t> add_tensor(std::string name, DType dtype, std::span<const std::uint64_t> shape);

  /// kNotFound for an unknown tensor; kInvalidArgument for a box that does not lie in its shape.
  Status add_shard(std::uint32_t tensor, const Shard& shard);

  std::size_t tensors() const { return tensors_.size(); }
  std::optional<std::uint32_t> find(std::string_view name) const;
  const std::string& name(std::uint32_t tensor) const { return tensors_[tensor].name; }
  const DType& dtype(std::uint32_t tensor) const { return tensors_[tensor].dtype; }
  /// Of a scalar: one dimension of one element.
  std::span<const std::uint64_t> shape(std::uint32_t tensor) const { return tensors_[tensor].shape; }
  std::size_t shards(std::uint32_t tensor) const { return tensors_[tensor].holders.size(); }
  /// With its strides. Valid until the tensor gets another shard.
  Shard shard(std::uint32_t tensor, std::size_t index) const;
  /// Of its elements.
  std::uint64_t bytes(std::uint32_t tensor, std::size_t index) const;

 private:
  struct Holder {
    std::uint64_t address = 0;
    std::uint32_t rank = 0;
  };
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<std::uint64_t> shape;
    std::vector<Holder> holders;
    std::vector<std::uint64_t> boxes;   // of each shard the offset, then the size
    std::vector<std::int64_t> strides;  // of each shard
  };

  std::vector<Tensor> tensors_;
  std::unordered_map<std::string, std::uint32_t> by_name_;
};

}  // namespace p2p::weights
