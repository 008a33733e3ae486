// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "convert/strides.h"

#include "convert/layout.h"

namespace p2p::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

constexpr const char* kText =
    "How bytes lie that are not side by side: rows of blocks, in the order of the blocks, row by row.\n"
    "block: bytes of a block; count: blocks of a row; stride: bytes from the start of a block to that of the "
    "next\none in its row; rows: how many; row_stride: bytes from the start of a row to that of the next "
    "one. "
    "Strides may\nbe negative. ValueError for more bytes than memory can have.";

void make(Strides* self, std::uint64_t block, std::uint64_t count, std::int64_t stride, std::uint64_t rows,
          std::int64_t row_stride) {
  const Strides strides{block, count, stride, rows, row_stride};
  if (!bytes_of(strides)) throw nb::value_error("Strides: more bytes than memory can have");
  new (self) Strides(strides);
}

}  // namespace

std::optional<std::size_t> bytes_of(const Strides& strides) {
  std::size_t bytes = strides.block;
  for (const std::uint64_t times : {strides.count, strides.rows}) {
    if (times != 0 && bytes > ~std::size_t{0} / times) return std::nullopt;
    bytes *= times;
  }
  return bytes;
}

std::pair<std::uint64_t, std::size_t> strided_range(std::uint64_t address, const Strides& strides) {
  const Layout layout(strides.block, {{strides.rows, strides.row_stride}, {strides.count, strides.stride}});
  if (layout.one_run()) return {address, *bytes_of(strides)};
  return layout.range(address);
}

bool Amount::load(nb::handle source) noexcept {
  Strides* given = nullptr;
  if (nb::try_cast<Strides*>(source, given, false) && given != nullptr) {
    strides = *given;
    bytes = *bytes_of(*given);
    return true;
  }
  strides.reset();
  return nb::try_cast<std::size_t>(source, bytes);
}

void bind_strides(nb::module_& module) {
  nb::class_<Strides>(module, "Strides", kText)
      .def("__init__", &make, "block"_a, "count"_a = 1, "stride"_a = 0, "rows"_a = 1, "row_stride"_a = 0)
      .def_ro("block", &Strides::block)
      .def_ro("count", &Strides::count)
      .def_ro("stride", &Strides::stride)
      .def_ro("rows", &Strides::rows)
      .def_ro("row_stride", &Strides::row_stride)
      .def_prop_ro("bytes", [](const Strides& self) { return *bytes_of(self); }, "Of all blocks.");
}

}  // namespace p2p::python
