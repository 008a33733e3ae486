// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "convert/layout.h"

#include <algorithm>

namespace p2p::python {
namespace {

// Addresses are counted without a sign, since an array may run downwards.
std::uint64_t offset(std::int64_t stride, std::uint64_t times) {
  return static_cast<std::uint64_t>(stride) * times;
}

std::uint64_t distance(const Dimension& dimension) {
  const auto stride = static_cast<std::uint64_t>(dimension.stride);
  return dimension.stride < 0 ? 0 - stride : stride;
}

/// As Python writes tuples.
template <class Number>
std::string tuple(const std::vector<Dimension>& dimensions, Number Dimension::* which) {
  std::string text;
  for (const Dimension& one : dimensions) text += (text.empty() ? "(" : ", ") + std::to_string(one.*which);
  return text + (dimensions.size() == 1 ? ",)" : ")");
}

}  // namespace

Layout::Layout(std::size_t item, std::vector<Dimension> dimensions) : run_(item) {
  if (std::ranges::any_of(dimensions, [](const Dimension& one) { return one.extent == 0; })) return;
  for (std::size_t i = dimensions.size(); i-- > 0;) {
    const Dimension& one = dimensions[i];
    if (one.extent == 1) continue;
    if (along_.empty() && one.stride >= 0 && static_cast<std::uint64_t>(one.stride) == run_) {
      run_ *= one.extent;
    } else if (!along_.empty() &&
               static_cast<std::uint64_t>(one.stride) == offset(along_.back().stride, along_.back().extent)) {
      along_.back().extent *= one.extent;
    } else {
      along_.push_back(one);
    }
  }
  std::ranges::reverse(along_);
  if (!along_.empty()) dimensions_ = std::move(dimensions);
}

std::size_t Layout::runs() const {
  std::size_t count = 1;
  for (const Dimension& one : along_) {
    if (one.extent > kMostRuns / count) return kMostRuns + 1;
    count *= one.extent;
  }
  return count;
}

std::optional<Strides> Layout::strides() const {
  if (along_.empty() || along_.size() > 2) return std::nullopt;
  Strides strides{.block = run_, .count = along_.back().extent, .stride = along_.back().stride};
  if (along_.size() == 2) {
    strides.rows = along_.front().extent;
    strides.row_stride = along_.front().stride;
  }
  return strides;
}

bool Layout::overlaps() const {
  std::vector<Dimension> rising = along_;
  std::ranges::sort(rising, {}, distance);
  std::uint64_t end = run_;
  for (const Dimension& one : rising) {
    if (distance(one) < end) return true;
    end += distance(one) * (one.extent - 1);
  }
  return false;
}

std::pair<std::uint64_t, std::size_t> Layout::range(std::uint64_t address) const {
  std::size_t size = run_;
  for (const Dimension& one : along_) {
    if (one.stride < 0) address += offset(one.stride, one.extent - 1);
    size += distance(one) * (one.extent - 1);
  }
  return {address, size};
}

std::string Layout::text() const {
  const std::size_t count = runs();
  const std::string many =
      count > kMostRuns ? "more than " + std::to_string(kMostRuns) : std::to_string(count);
  return "shape " + tuple(dimensions_, &Dimension::extent) + " and strides " +
         tuple(dimensions_, &Dimension::stride) + " in bytes are " + many + " runs of " +
         std::to_string(run_) + " bytes";
}

}  // namespace p2p::python
