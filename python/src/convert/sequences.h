// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "p2p/result.h"

namespace p2p::python {

/// Lists are read so many entries at a time, where they lie: an entry is used while it is in the cache.
inline constexpr std::size_t kStep = 64;

/// Calls `read(first, count)` for each step of a list of `size` entries.
template <class Read>
void for_each_step(std::size_t size, Read&& read) {
  for (std::size_t first = 0; first < size; first += kStep) read(first, std::min(kStep, size - first));
}

/// An argument that lists integers: an array of any width and stride, or a Python sequence. Read with the
/// GIL. Negative numbers become huge ones, which no region contains.
class Numbers {
 public:
  using Step = std::array<std::uint64_t, kStep>;

  /// False, without a Python error, for what is not such a list. Entries of a sequence are not looked at yet.
  bool load(nanobind::handle source) noexcept;

  std::size_t size() const { return size_; }

  /// `count` numbers from `first` on, in `into` unless they are read in place. Raises TypeError with the
  /// index for what is no integer of 64 bits, RuntimeError if the list was changed meanwhile.
  std::span<const std::uint64_t> step(std::size_t first, std::size_t count, Step& into) const;

 private:
  using Array = nanobind::ndarray<nanobind::ro, nanobind::device::cpu, nanobind::ndim<1>>;
  using Reader = void (*)(const Array& array, std::size_t first, std::span<std::uint64_t> into);

  bool load_array(nanobind::handle source);

  Array array_;
  Reader reader_ = nullptr;                  // of arrays that are not read in place
  const std::uint64_t* in_place_ = nullptr;  // of those that are
  nanobind::object sequence_;
  std::size_t size_ = 0;
};

/// Where bytes are, of which the first Blob::kCapacity can be read.
struct BlobView {
  const std::byte* first = nullptr;
  std::size_t size = 0;
};

/// An argument of bytes: bytes, bytearray, memoryview or any other contiguous buffer.
class Blob {
 public:
  static constexpr std::size_t kCapacity = 128;

  /// False, without a Python error, for what is not a buffer.
  bool load(nanobind::handle source) noexcept;

  /// All of it if it fits the capacity, else its beginning; `size` tells the true length.
  std::span<const std::byte> bytes() const { return {storage_.data(), std::min(size_, kCapacity)}; }
  std::size_t size() const { return size_; }

  BlobView view() const { return {storage_.data(), size_}; }

 private:
  std::array<std::byte, kCapacity> storage_{};
  std::size_t size_ = 0;
};

/// An argument that lists blobs: a sequence of bytes-likes, or a contiguous array of shape (n, bytes).
class Blobs {
 public:
  struct Step {
    std::array<BlobView, kStep> views;
    std::vector<Blob> copied;
  };

  /// As of Numbers.
  bool load(nanobind::handle source) noexcept;

  std::size_t size() const { return size_; }

  /// `count` blobs from `first` on, to be used before anything of Python's runs. Raises as that of Numbers
  /// does.
  std::span<const BlobView> step(std::size_t first, std::size_t count, Step& into) const;

 private:
  using Matrix = nanobind::ndarray<nanobind::ro, std::uint8_t, nanobind::device::cpu, nanobind::ndim<2>,
                                   nanobind::c_contig>;

  Matrix matrix_;
  nanobind::object sequence_;
  std::size_t size_ = 0;
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
