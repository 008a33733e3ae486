// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "p2p/strided.h"

namespace p2p::python {

/// All bytes of the blocks; nothing if no memory has so many.
std::optional<std::size_t> bytes_of(const Strides& strides);

/// From the lowest byte to the end of the highest, where the first block is at `address`.
std::pair<std::uint64_t, std::size_t> strided_range(std::uint64_t address, const Strides& strides);

/// An argument that says how much lies at an address: bytes side by side, or Strides.
struct Amount {
  std::size_t bytes = 0;
  std::optional<Strides> strides{};

  /// False, without a Python error, for what is neither.
  bool load(nanobind::handle source) noexcept;
};

void bind_strides(nanobind::module_& module);

}  // namespace p2p::python

namespace nanobind::detail {

template <>
struct type_caster<p2p::python::Amount> {
  NB_TYPE_CASTER(p2p::python::Amount, const_name("int | ") + const_name<p2p::Strides>())
  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept { return value.load(source); }
};

}  // namespace nanobind::detail
