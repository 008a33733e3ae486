// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "weights/model.h"

#include <algorithm>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>

namespace p2p::testing {

namespace {

using Numbers = std::vector<std::uint64_t>;

std::uint64_t draw(std::mt19937_64& dice, std::uint64_t most) {
  return std::uniform_int_distribution<std::uint64_t>(0, most)(dice);
}

std::uint64_t mix(std::uint64_t version, std::uint64_t tensor, std::uint64_t at) {
  std::uint64_t x = (version << 48) ^ (tensor << 40) ^ at;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9;
  return x ^ (x >> 32);
}

/// The version that an element is of.
template <class Line>
std::uint64_t origin(const Line& line, std::uint64_t tensor, std::uint64_t element) {
  std::size_t at = 0;
  while (line[at].every > 1 && mix(~line[at].version, tensor, element) % line[at].every != 0) ++at;
  return line[at].version;
}

void check(const Status& status) {
  if (!status) throw std::runtime_error(status.error().message);
}

/// Byte `at` of a tensor in a version.
std::byte byte_of(std::uint64_t version, std::uint64_t tensor, std::uint64_t at) {
  return static_cast<std::byte>(mix(version, tensor, at >> 3) >> (8 * (at & 7)));
}

}  // namespace

WeightsModel::WeightsModel(std::uint64_t tensors_seed, std::uint64_t bytes) {
  std::mt19937_64 dice(tensors_seed);
  if (tensors_seed == 0) {
    tensors_.push_back({{bytes / 2}, 2});
    return;
  }
  for (std::uint64_t done = 0; done < bytes;) {
    Tensor tensor;
    tensor.element = 1U << draw(dice, 3);
    std::uint64_t rest = std::max<std::uint64_t>((bytes - done) / tensor.element / (1 + draw(dice, 3)), 1);
    for (std::uint64_t dims = draw(dice, 3); dims > 0; --dims) {
      const std::uint64_t extent = std::min<std::uint64_t>(rest, 1 + draw(dice, dims == 1 ? rest : 40));
      tensor.shape.push_back(extent);
      rest /= extent;
    }
    std::uint64_t size = tensor.element;
    for (const std::uint64_t extent : tensor.shape) size *= extent;
    done += std::max(size, bytes / 16);  // few tensors of a single element
    tensors_.push_back(std::move(tensor));
  }
}

WeightsModel::Shards WeightsModel::cut(std::uint64_t cut_seed, const std::string& place) const {
  std::mt19937_64 dice(cut_seed);
  Shards shards;
  std::vector<std::vector<std::pair<Numbers, Numbers>>> boxes;  // of each tensor
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : tensors_) {
    auto& cuts = boxes.emplace_back();
    cuts.push_back({Numbers(tensor.shape.size(), 0), tensor.shape});
    for (std::uint64_t more = cut_seed == 0 || tensor.shape.empty() ? 0 : draw(dice, 4); more > 0; --more) {
      const std::size_t at = draw(dice, cuts.size() - 1), dim = draw(dice, tensor.shape.size() - 1);
      if (cuts[at].second[dim] < 2) continue;
      const std::uint64_t first = 1 + draw(dice, cuts[at].second[dim] - 2);
      auto rest = cuts[at];
      rest.first[dim] += first, rest.second[dim] -= first, cuts[at].second[dim] = first;
      cuts.push_back(std::move(rest));
    }
    std::uint64_t size = tensor.element;
    for (const std::uint64_t extent : tensor.shape) size *= extent;
    bytes += size + cuts.size() * 8;
  }
  shards.memory = std::make_unique<Pages>(bytes);
  std::uint64_t at = reinterpret_cast<std::uint64_t>(shards.memory->data());
  for (std::size_t number = 0; number < tensors_.size(); ++number) {
    const Tensor& tensor = tensors_[number];
    const auto added =
        shards.on_host.add_tensor("t" + std::to_string(number),
                                  {"u" + std::to_string(8 * tensor.element), tensor.element}, tensor.shape);
    for (const auto& [offset, size] : boxes[number]) {
      (void)shards.on_host.add_shard(added.value(), {0, at, offset, size, {}});
      std::uint64_t taken = tensor.element;
      for (const std::uint64_t extent : size) taken *= extent;
      at += taken + (draw(dice, 1) == 0 ? 0 : 8);  // some touch, some do not
    }
  }
  this->place(shards, place);
  return shards;
}

/// Gives some tensors the same places in the memory of a GPU.
void WeightsModel::place(Shards& shards, const std::string& place) const {
  const bool mixed = place.starts_with("mixed"), host = place == "host";
  shards.gpu_tensor.resize(tensors_.size());
  for (std::size_t at = 0; at < tensors_.size(); ++at)
    shards.gpu_tensor[at] = !host && (!mixed || at % 2 == 0);
  if (!host) {
    const std::string kind = mixed ? "cuda" + place.substr(place.find(':')) : place;
    auto gpu = GpuMemory::allocate(kind, shards.memory->size());
    if (!gpu) throw std::runtime_error(gpu.error().message);
    shards.gpu = std::move(*gpu);
  }
  const weights::Manifest& from = shards.on_host;
  for (std::uint32_t tensor = 0; tensor < from.tensors(); ++tensor) {
    const auto shape = from.shape(tensor);
    (void)shards.manifest.add_tensor(std::string(from.name(tensor)), from.dtype(tensor),
                                     {shape.begin(), shape.end()});
    for (std::size_t at = 0; at < from.shards(tensor); ++at) {
      const weights::Shard shard = from.shard(tensor, at);
      std::uint64_t address = shard.address;
      if (shards.gpu_tensor[tensor]) {
        address += reinterpret_cast<std::uint64_t>(shards.gpu.data()) -
                   reinterpret_cast<std::uint64_t>(shards.memory->data());
      }
      (void)shards.manifest.add_shard(tensor, {0, address, shard.offset, shard.size, {}});
    }
  }
}

/// Calls `use(memory, tensor, where in the tensor, bytes)` for each row of a shard.
template <class Use>
void WeightsModel::for_each_row(const Shards& shards, Use use) const {
  const weights::Manifest& manifest = shards.on_host;
  for (std::uint32_t tensor = 0; tensor < manifest.tensors(); ++tensor) {
    const auto shape = manifest.shape(tensor);
    const std::uint64_t element = manifest.dtype(tensor).bytes;
    for (std::size_t at = 0; at < manifest.shards(tensor); ++at) {
      const weights::Shard shard = manifest.shard(tensor, at);
      Numbers index(shape.size(), 0);
      auto* memory = reinterpret_cast<std::byte*>(shard.address);
      const std::uint64_t row = shard.size.back() * element;
      for (bool more = true; more;) {
        std::uint64_t flat = 0;
        for (std::size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + shard.offset[d] + index[d];
        use(std::span(memory, row), tensor, flat * element);
        memory += row;
        std::size_t d = shape.size() - 1;
        for (more = false; d-- > 0 && !more; more |= index[d] != 0) {
          index[d] = index[d] + 1 == shard.size[d] ? 0 : index[d] + 1;
        }
      }
    }
  }
}

void WeightsModel::descend(std::uint64_t version, std::uint64_t base, std::uint64_t every) {
  descents_[version] = {base, every};
}

WeightsModel::Line WeightsModel::line_of(std::uint64_t version) const {
  Line line;
  for (auto at = descents_.find(version); at != descents_.end(); at = descents_.find(version)) {
    line.push_back({version, at->second.every});
    version = at->second.base;
  }
  line.push_back({version, 1});
  return line;
}

std::uint64_t WeightsModel::own_elements(std::uint64_t version) const {
  const Line line = line_of(version);
  std::uint64_t own = 0;
  for (std::size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    std::uint64_t elements = 1;
    for (const std::uint64_t extent : tensors_[tensor].shape) elements *= extent;
    for (std::uint64_t at = 0; at < elements; ++at) own += origin(line, tensor, at) == version ? 1 : 0;
  }
  return own;
}

/// Calls `use(byte of a shard in host memory, what it is in the version, tensor)`.
template <class Use>
void WeightsModel::for_each_byte(const Shards& shards, std::uint64_t version, Use use) const {
  const Line line = line_of(version);
  for_each_row(shards, [&](std::span<std::byte> row, std::uint64_t tensor, std::uint64_t at) {
    const std::uint64_t element = tensors_[tensor].element;
    for (std::size_t i = 0; i < row.size();) {
      const std::uint64_t from = line.size() == 1 ? version : origin(line, tensor, at / element);
      for (std::uint64_t rest = element; rest > 0; --rest) use(row[i++], byte_of(from, tensor, at++), tensor);
    }
  });
}

void WeightsModel::fill(const Shards& shards, std::uint64_t version) const {
  for_each_byte(shards, version, [](std::byte& byte, std::byte is, std::uint64_t /*tensor*/) { byte = is; });
  if (shards.gpu.data() != nullptr) check(shards.gpu.store(0, shards.memory->bytes()));
}

std::uint64_t WeightsModel::differ(const Shards& shards, std::uint64_t version) const {
  std::uint64_t wrong = 0;
  std::vector<std::byte> of_gpu(shards.gpu.data() != nullptr ? shards.memory->size() : 0);
  if (!of_gpu.empty()) check(shards.gpu.load(0, of_gpu));
  for_each_byte(shards, version, [&](const std::byte& byte, std::byte is, std::uint64_t tensor) {
    const bool there = shards.gpu_tensor[tensor];
    wrong += (there ? of_gpu[static_cast<std::size_t>(&byte - shards.memory->data())] : byte) == is ? 0 : 1;
  });
  return wrong;
}

void WeightsModel::spoil(const Shards& shards) const {
  const auto at = shards.on_host.shard(0, 0).address - reinterpret_cast<std::uint64_t>(shards.memory->data());
  if (!shards.gpu_tensor[0]) {
    shards.memory->data()[at] ^= std::byte{1};
    return;
  }
  std::byte byte{};
  check(shards.gpu.load(at, {&byte, 1}));
  byte ^= std::byte{1};
  check(shards.gpu.store(at, {&byte, 1}));
}

}  // namespace p2p::testing
