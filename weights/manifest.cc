// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/weights/manifest.h"

#include <array>
#include <limits>
#include <utility>

namespace p2p::weights {

namespace {

tl::unexpected<Error> refused(const std::string& tensor, std::string_view cause) {
  return tl::unexpected(
      Error{ErrorCode::kInvalidArgument, "Tensor '" + tensor + "' is refused: " + std::string(cause) + "."});
}

}  // namespace

Result<std::uint32_t> Manifest::add_tensor(std::string name, DType dtype,
                                           std::span<const std::uint64_t> shape) {
  if (name.empty()) return refused(name, "it has no name");
  if (by_name_.contains(name)) return refused(name, "the manifest has one of this name");
  if (dtype.bytes == 0) return refused(name, "elements of type '" + dtype.name + "' have no bytes");
  if (shape.size() > kMaxDims) {
    return refused(name, "it has " + std::to_string(shape.size()) + " dimensions, and " +
                             std::to_string(kMaxDims) + " is the most");
  }
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t bytes = dtype.bytes;
  for (const std::uint64_t extent : shape) {
    // An extent of 0 counts as 1, so that the others are bounded too.
    if (extent > kMost / bytes) return refused(name, "its shape has more bytes than 63 bits count");
    bytes *= extent == 0 ? 1 : extent;
  }
  const auto number = static_cast<std::uint32_t>(tensors_.size());
  by_name_.emplace(name, number);
  tensors_.push_back({std::move(name), std::move(dtype), {shape.begin(), shape.end()}, {}, {}, {}});
  if (shape.empty()) tensors_.back().shape = {1};
  return number;
}

Status Manifest::add_shard(std::uint32_t tensor, const Shard& shard) {
  if (tensor >= tensors_.size()) {
    return tl::unexpected(Error{ErrorCode::kNotFound, "A shard of tensor " + std::to_string(tensor) +
                                                          " is refused: the manifest has " +
                                                          std::to_string(tensors_.size()) + " tensors."});
  }
  Tensor& row = tensors_[tensor];
  const std::size_t dims = row.shape.size();
  const bool scalar = dims == 1 && row.shape[0] == 1 && shard.offset.empty() && shard.size.empty();
  constexpr std::array<std::uint64_t, 1> kFirst{0}, kOne{1};
  const auto offset = scalar ? std::span<const std::uint64_t>(kFirst) : shard.offset;
  const auto size = scalar ? std::span<const std::uint64_t>(kOne) : shard.size;
  if (offset.size() != dims || size.size() != dims ||
      (!shard.strides.empty() && shard.strides.size() != dims)) {
    return refused(row.name, "a shard of rank " + std::to_string(shard.rank) +
                                 " has another number of dimensions than the tensor");
  }
  for (std::size_t d = 0; d < dims; ++d) {
    if (offset[d] > row.shape[d] || size[d] > row.shape[d] - offset[d]) {
      return refused(row.name, "the shard of rank " + std::to_string(shard.rank) + " has " +
                                   std::to_string(size[d]) + " elements from " + std::to_string(offset[d]) +
                                   " in dimension " + std::to_string(d) + ", which has " +
                                   std::to_string(row.shape[d]));
    }
  }
  std::array<std::int64_t, kMaxDims> strides{};
  auto stride = static_cast<std::int64_t>(row.dtype.bytes);
  for (std::size_t d = dims; d-- > 0;) {
    strides[d] = shard.strides.empty() ? stride : shard.strides[d];
    stride *= static_cast<std::int64_t>(size[d]);
  }
  row.holders.push_back({shard.address, shard.rank});
  row.boxes.insert(row.boxes.end(), offset.begin(), offset.end());
  row.boxes.insert(row.boxes.end(), size.begin(), size.end());
  row.strides.insert(row.strides.end(), strides.begin(), strides.begin() + static_cast<std::ptrdiff_t>(dims));
  return {};
}

std::optional<std::uint32_t> Manifest::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

Shard Manifest::shard(std::uint32_t tensor, std::size_t index) const {
  const Tensor& row = tensors_[tensor];
  const std::size_t dims = row.shape.size();
  const std::span<const std::uint64_t> boxes(row.boxes);
  return {row.holders[index].rank, row.holders[index].address, boxes.subspan(2 * dims * index, dims),
          boxes.subspan(2 * dims * index + dims, dims),
          std::span<const std::int64_t>(row.strides).subspan(dims * index, dims)};
}

std::uint64_t Manifest::bytes(std::uint32_t tensor, std::size_t index) const {
  std::uint64_t product = tensors_[tensor].dtype.bytes;
  for (const std::uint64_t extent : shard(tensor, index).size) product *= extent;
  return product;
}

}  // namespace p2p::weights
