// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/weights/plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "shard_index.h"

namespace p2p::weights {

namespace {

using Numbers = std::array<std::uint64_t, kMaxDims>;

tl::unexpected<Error> no_plan(ErrorCode code, const std::string& tensor, const std::string& cause) {
  return tl::unexpected(Error{code, "No plan for tensor '" + tensor + "': " + cause + "."});
}

std::string text(std::span<const std::uint64_t> numbers) {
  std::string out = "(";
  for (const std::uint64_t number : numbers) {
    if (out.size() > 1) out += ", ";
    out += std::to_string(number);
  }
  return out + ")";
}

std::string text(const Shard& shard) {
  return "the shard of rank " + std::to_string(shard.rank) + " at " + text(shard.offset) + " of size " +
         text(shard.size);
}

std::uint64_t volume(std::span<const std::uint64_t> size) {
  std::uint64_t product = 1;
  for (const std::uint64_t extent : size) product *= extent;
  return product;
}

/// What two boxes have in common; false: nothing.
bool intersect(std::span<const std::uint64_t> a, std::span<const std::uint64_t> a_size,
               std::span<const std::uint64_t> b, std::span<const std::uint64_t> b_size,
               std::pair<Numbers, Numbers>& common) {
  for (std::size_t d = 0; d < a.size(); ++d) {
    const std::uint64_t begin = std::max(a[d], b[d]);
    const std::uint64_t end = std::min(a[d] + a_size[d], b[d] + b_size[d]);
    if (begin >= end) return false;
    common.first[d] = begin, common.second[d] = end - begin;
  }
  return true;
}

/// The address of an element of a shard.
std::uint64_t address_of(const Shard& shard, const Numbers& element) {
  std::uint64_t address = shard.address;
  for (std::size_t d = 0; d < shard.offset.size(); ++d) {
    address += (element[d] - shard.offset[d]) * static_cast<std::uint64_t>(shard.strides[d]);
  }
  return address;
}

/// The elements of a wanted shard that come by one part of a plan, as a box of the owned tensor; false: none.
template <class Part>
bool owned_box(const Part& part, const Shard& wanted, std::pair<Numbers, Numbers>& box) {
  if (!intersect(wanted.offset, wanted.size, part.wanted_offset, part.size, box)) return false;
  for (std::size_t d = 0; d < wanted.size.size(); ++d) {
    box.first[d] += part.owned_offset[d] - part.wanted_offset[d];
  }
  return true;
}

/// Adds a dimension around what the region has so far, as part of what is there where strides allow.
void extend(Region& region, const Region::Level& level) {
  if (level.count == 1) return;
  const auto run = static_cast<std::int64_t>(region.run);
  if (region.depth == 0 && level.source_stride == run && level.target_stride == run) {
    region.run *= level.count;
    return;
  }
  if (region.depth > 0) {
    Region::Level& inner = region.levels[region.depth - 1];
    const auto whole = [&](std::int64_t stride) {  // one of a peer's may overflow
      return static_cast<std::int64_t>(static_cast<std::uint64_t>(stride) * inner.count);
    };
    if (level.source_stride == whole(inner.source_stride) &&
        level.target_stride == whole(inner.target_stride)) {
      inner.count *= level.count;
      return;
    }
  }
  region.levels[region.depth++] = level;
}

}  // namespace

/// Makes a plan, tensor by tensor.
class Planner {
 public:
  Planner(const Manifest& owned, const Manifest& wanted) : owned_(owned), wanted_(wanted) {
    plan_.owned_ = &owned;
    plan_.wanted_ = &wanted;
  }

  Result<Plan> make(std::span<const Rename> renames) {
    std::map<std::uint32_t, std::vector<const Rename*>> rules;
    for (const Rename& rename : renames) {
      const auto wanted = wanted_.find(rename.wanted);
      if (!wanted)
        return no_plan(ErrorCode::kNotFound, rename.wanted, "a rule names it, and it is not wanted");
      rules[*wanted].push_back(&rename);
    }
    for (std::uint32_t tensor = 0; tensor < wanted_.tensors(); ++tensor) {
      const std::size_t first = plan_.parts_.size();
      const auto found = rules.find(tensor);
      if (auto added = found == rules.end() ? add_same(tensor) : add_parts(tensor, found->second); !added) {
        return tl::unexpected(std::move(added.error()));
      }
      if (auto paired = pair_shards(tensor, first); !paired) return tl::unexpected(std::move(paired.error()));
    }
    return std::move(plan_);
  }

 private:
  using Part = Plan::Part;

  Result<std::uint32_t> find_owned(std::uint32_t wanted, const std::string& name) const {
    const auto found = owned_.find(name);
    if (!found) return no_plan(ErrorCode::kNotFound, wanted_.name(wanted), "nobody owns '" + name + "'");
    const DType &from = owned_.dtype(*found), &to = wanted_.dtype(wanted);
    if (from.name != to.name || from.bytes != to.bytes) {
      return no_plan(ErrorCode::kInvalidArgument, wanted_.name(wanted),
                     "'" + name + "' is owned as " + from.name + " of " + std::to_string(from.bytes) +
                         " bytes and wanted as " + to.name + " of " + std::to_string(to.bytes));
    }
    return *found;
  }

  /// A tensor that no rule names is filled by the owned one of its name.
  Status add_same(std::uint32_t wanted) {
    const auto owned = find_owned(wanted, wanted_.name(wanted));
    if (!owned) return tl::unexpected(owned.error());
    const auto from = owned_.shape(*owned), to = wanted_.shape(wanted);
    if (!std::ranges::equal(from, to)) {
      return no_plan(
          ErrorCode::kInvalidArgument, wanted_.name(wanted),
          "its shape is " + text(from) + " where it is owned and " + text(to) + " where it is wanted");
    }
    Part part{*owned, wanted, {}, {}, {}};
    std::ranges::copy(to, part.size.begin());
    plan_.parts_.push_back(part);
    return {};
  }

  Status add_parts(std::uint32_t wanted, std::span<const Rename* const> rules) {
    const std::size_t first = plan_.parts_.size(), dims = wanted_.shape(wanted).size();
    for (const Rename* rule : rules) {
      const auto owned = find_owned(wanted, rule->owned);
      if (!owned) return tl::unexpected(owned.error());
      Part part{*owned, wanted, {}, {}, {}};
      if (auto placed = place(*rule, part); !placed) return placed;
      for (std::size_t other = first; other < plan_.parts_.size(); ++other) {
        std::pair<Numbers, Numbers> common;
        const Part& before = plan_.parts_[other];
        if (intersect(std::span(before.wanted_offset).first(dims), std::span(before.size).first(dims),
                      part.wanted_offset, part.size, common)) {
          return no_plan(
              ErrorCode::kInvalidArgument, rule->wanted,
              "the rules for '" + owned_.name(before.owned) + "' and '" + rule->owned + "' overlap");
        }
      }
      plan_.parts_.push_back(part);
    }
    return {};
  }

  /// The boxes of a rule, checked.
  Status place(const Rename& rule, Part& part) const {
    const auto from = owned_.shape(part.owned), to = wanted_.shape(part.wanted);
    const auto fits = [&](const std::vector<std::uint64_t>& numbers) {
      return numbers.empty() || numbers.size() == to.size();
    };
    if (from.size() != to.size() || !fits(rule.owned_offset) || !fits(rule.wanted_offset) ||
        !fits(rule.size)) {
      return no_plan(ErrorCode::kInvalidArgument, rule.wanted,
                     "it, '" + rule.owned + "' and the rule for both do not have one number of dimensions");
    }
    std::ranges::copy(rule.owned_offset, part.owned_offset.begin());
    std::ranges::copy(rule.wanted_offset, part.wanted_offset.begin());
    std::ranges::copy(rule.size.empty() ? from : std::span(rule.size), part.size.begin());
    for (std::size_t d = 0; d < to.size(); ++d) {
      const auto outside = [&](std::uint64_t offset, std::uint64_t extent) {
        return part.size[d] > extent || offset > extent - part.size[d];
      };
      if (outside(part.owned_offset[d], from[d]) || outside(part.wanted_offset[d], to[d])) {
        return no_plan(ErrorCode::kInvalidArgument, rule.wanted,
                       "the box of the rule for '" + rule.owned + "' is not within both in dimension " +
                           std::to_string(d));
      }
    }
    return {};
  }

  /// Finds the owned shards for each wanted one. Owned boxes and parts do not overlap, so that the sum of
  /// what meets a wanted box is its size exactly if nothing is missing.
  Status pair_shards(std::uint32_t wanted, std::size_t first) {
    std::map<std::uint32_t, ShardIndex> indices;  // by owned tensor: parts may come from one
    for (std::size_t part = first; part < plan_.parts_.size(); ++part) {
      const std::uint32_t owned = plan_.parts_[part].owned;
      const auto [index, fresh] = indices.try_emplace(owned, owned_, owned);
      if (const auto both = fresh ? index->second.overlap() : std::nullopt) {
        return no_plan(
            ErrorCode::kInvalidArgument, owned_.name(owned),
            text(owned_.shard(owned, both->first)) + " overlaps " + text(owned_.shard(owned, both->second)));
      }
    }
    for (std::uint32_t at = 0; at < wanted_.shards(wanted); ++at) {
      const Shard shard = wanted_.shard(wanted, at);
      std::uint64_t filled = 0;
      for (std::size_t part = first; part < plan_.parts_.size(); ++part) {
        filled += pair_shard(static_cast<std::uint32_t>(part), at, indices.at(plan_.parts_[part].owned));
      }
      const std::uint64_t size = volume(shard.size);
      if (filled != size) {
        return no_plan(ErrorCode::kInvalidArgument, wanted_.name(wanted),
                       std::to_string(size - filled) + " of " + std::to_string(size) + " elements of " +
                           text(shard) + " have no owner");
      }
      plan_.bytes_ += size * wanted_.dtype(wanted).bytes;
    }
    return {};
  }

  /// The elements of a wanted shard that come by one part.
  std::uint64_t pair_shard(std::uint32_t number, std::uint32_t wanted, const ShardIndex& index) {
    const Part& part = plan_.parts_[number];
    const Shard to = wanted_.shard(part.wanted, wanted);
    const std::size_t dims = to.size.size();
    std::pair<Numbers, Numbers> box, common;
    if (!owned_box(part, to, box)) return 0;
    const auto offset = std::span<const std::uint64_t>(box.first).first(dims);
    const auto size = std::span<const std::uint64_t>(box.second).first(dims);
    std::uint64_t filled = 0;
    index.for_each(offset, size, to.rank, [&](std::uint32_t owned) {
      const Shard from = owned_.shard(part.owned, owned);
      intersect(offset, size, from.offset, from.size, common);
      filled += volume(std::span(common.second).first(dims));
      plan_.pairs_.push_back({number, owned, wanted});
    });
    return filled;
  }

  const Manifest& owned_;
  const Manifest& wanted_;
  Plan plan_;
};

std::uint64_t Region::bytes() const {
  std::uint64_t product = run;
  for (std::size_t at = 0; at < depth; ++at) product *= levels[at].count;
  return product;
}

Result<Plan> Plan::make(const Manifest& owned, const Manifest& wanted, std::span<const Rename> renames) {
  return Planner(owned, wanted).make(renames);
}

Region Plan::region(std::size_t index) const {
  const Pair& pair = pairs_[index];
  const Part& part = parts_[pair.part];
  const Shard from = owned_->shard(part.owned, pair.owned);
  const Shard to = wanted_->shard(part.wanted, pair.wanted);
  const std::size_t dims = to.size.size();
  std::pair<Numbers, Numbers> box, common;
  owned_box(part, to, box);
  intersect(from.offset, from.size, box.first, box.second, common);
  Region region;
  region.source_rank = from.rank;
  region.target_rank = to.rank;
  region.source = address_of(from, common.first);
  for (std::size_t d = 0; d < dims; ++d) common.first[d] += part.wanted_offset[d] - part.owned_offset[d];
  region.target = address_of(to, common.first);
  region.run = wanted_->dtype(part.wanted).bytes;
  for (std::size_t d = dims; d-- > 0;) extend(region, {common.second[d], from.strides[d], to.strides[d]});
  return region;
}

}  // namespace p2p::weights
