// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "p2p/result.h"

namespace p2p::python {

/// An argument that lists integers: a NumPy array of 64-bit integers is read in place, other integer arrays
/// and Python sequences are copied once. Negative numbers become huge ones, which no region contains.
class Numbers {
 public:
  /// False, without a Python error, for what is not such a list.
  bool load(nanobind::handle source) noexcept;

  std::size_t size() const { return view_.size(); }
  std::uint64_t operator[](std::size_t index) const { return view_[index]; }

 private:
  using Array = nanobind::ndarray<nanobind::ro, nanobind::device::cpu, nanobind::ndim<1>>;

  bool load_array(const Array& array);
  bool load_sequence(nanobind::handle source);

  Array array_;
  std::vector<std::uint64_t> copied_;
  std::span<const std::uint64_t> view_;
};

/// An argument of bytes: bytes, bytearray, memoryview or any other contiguous buffer.
class Blob {
 public:
  static constexpr std::size_t kCapacity = 128;

  /// False, without a Python error, for what is not a buffer.
  bool load(nanobind::handle source) noexcept;

  /// All of it if it fits the capacity, else its beginning; `size` tells the true length.
  std::span<const std::byte> bytes() const;
  std::size_t size() const { return size_; }

 private:
  std::array<std::byte, kCapacity> storage_{};
  std::size_t size_ = 0;
};

/// An argument that lists blobs: a sequence of bytes-likes, or a contiguous array of shape (n, bytes).
class Blobs {
 public:
  bool load(nanobind::handle source) noexcept;

  std::size_t size() const { return matrix_.is_valid() ? matrix_.shape(0) : items_.size(); }
  std::span<const std::byte> operator[](std::size_t index) const {
    if (!matrix_.is_valid()) return items_[index];
    const std::size_t width = matrix_.shape(1);
    return {reinterpret_cast<const std::byte*>(matrix_.data()) + index * width, width};
  }

 private:
  using Matrix = nanobind::ndarray<nanobind::ro, std::uint8_t, nanobind::device::cpu, nanobind::ndim<2>,
                                   nanobind::c_contig>;

  bool load_item(nanobind::handle item);

  Matrix matrix_;
  nanobind::object sequence_;  // keeps the items that are read in place
  std::deque<std::vector<std::byte>> copied_;
  std::vector<std::span<const std::byte>> items_;
};

/// An argument to write into: bytearray, a writable memoryview or array.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept : view_(std::exchange(other.view_, Py_buffer{})) {}
  Buffer& operator=(Buffer&& other) noexcept { return std::swap(view_, other.view_), *this; }
  ~Buffer() { PyBuffer_Release(&view_); }  // does nothing for one that holds none

  /// False, without a Python error, for what cannot be written to.
  bool load(nanobind::handle target) noexcept;

  /// kInvalidArgument if they do not fit.
  Status fill(std::span<const std::byte> bytes) const;

 private:
  Py_buffer view_{};
};

/// kInvalidArgument unless all lists have `expected` entries (or, without it, those of the first).
Result<std::size_t> same_length(std::initializer_list<std::size_t> sizes,
                                std::optional<std::size_t> expected);

}  // namespace p2p::python

namespace nanobind::detail {

template <>
struct type_caster<p2p::python::Numbers> {
  NB_TYPE_CASTER(p2p::python::Numbers, const_name("collections.abc.Sequence[int] | numpy.ndarray"))
  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept { return value.load(source); }
};

template <>
struct type_caster<p2p::python::Blob> {
  NB_TYPE_CASTER(p2p::python::Blob, const_name("bytes | bytearray | memoryview"))
  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept { return value.load(source); }
};

template <>
struct type_caster<p2p::python::Blobs> {
  NB_TYPE_CASTER(p2p::python::Blobs, const_name("collections.abc.Sequence[bytes] | numpy.ndarray"))
  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept { return value.load(source); }
};

template <>
struct type_caster<p2p::python::Buffer> {
  NB_TYPE_CASTER(p2p::python::Buffer, const_name("bytearray | memoryview | numpy.ndarray"))
  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept { return value.load(source); }
};

}  // namespace nanobind::detail
