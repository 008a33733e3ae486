// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "convert/sequences.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <stdexcept>

#include "convert/errors.h"

namespace p2p::python {
namespace nb = nanobind;
namespace {

template <class T, class Array>
void read_as(const Array& array, std::size_t first, std::span<std::uint64_t> into) {
  const std::int64_t stride = array.stride(0);
  const T* next = static_cast<const T*>(array.data()) + static_cast<std::int64_t>(first) * stride;
  for (std::uint64_t& number : into) {
    number = static_cast<std::uint64_t>(*next);
    next += stride;
  }
}

/// What reads an array of one of these types; null for one of another.
template <class Array, class... T>
auto reader_among(const Array& array) {
  void (*reader)(const Array&, std::size_t, std::span<std::uint64_t>) = nullptr;
  (static_cast<void>(array.dtype() == nb::dtype<T>() && (reader = &read_as<T, Array>)), ...);
  return reader;
}

// The length and an entry of a list or tuple. Wheels for several versions of Python have calls for it only.
#ifdef Py_LIMITED_API
Py_ssize_t length_of(PyObject* items, bool list) { return list ? PyList_Size(items) : PyTuple_Size(items); }
PyObject* item_of(PyObject* items, bool list, Py_ssize_t index) {
  return list ? PyList_GetItem(items, index) : PyTuple_GetItem(items, index);
}
#else
Py_ssize_t length_of(PyObject* items, bool list) {
  return list ? PyList_GET_SIZE(items) : PyTuple_GET_SIZE(items);
}
PyObject* item_of(PyObject* items, bool list, Py_ssize_t index) {
  return list ? PyList_GET_ITEM(items, index) : PyTuple_GET_ITEM(items, index);
}
#endif

std::size_t length_of(const nb::object& items) {
  return static_cast<std::size_t>(length_of(items.ptr(), PyList_Check(items.ptr())));
}

/// Asks for memory that is read soon.
void fetch(const void* first, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; at < bytes; at += kLine)
    __builtin_prefetch(static_cast<const std::byte*>(first) + at);
}

/// Python has each entry in memory of its own, which is seldom in the cache: all of a step are asked for
/// before the first is looked at.
using Items = std::array<PyObject*, kStep>;
void fetch(const nb::object& items, std::size_t first, std::size_t count, std::size_t bytes, Items& into) {
  PyObject* const all = items.ptr();
  const bool list = PyList_Check(all);
  const PyObject* last = nullptr;  // sizes are often one object again and again
  for (std::size_t i = 0; i < count; ++i) {
    PyObject* const item = item_of(all, list, static_cast<Py_ssize_t>(first + i));
    into[i] = item;
    if (item == last) continue;
    last = item;
    fetch(item, bytes);
  }
}

/// An entry, which a call of Python's may drop from the list. Raises if one has changed the list's length.
nb::object kept_item(const nb::object& items, std::size_t size, std::size_t index) {
  if (length_of(items) != size) throw std::runtime_error("a list was changed while it was read");
  return nb::borrow(item_of(items.ptr(), PyList_Check(items.ptr()), static_cast<Py_ssize_t>(index)));
}

/// An address or a size, as nearly all are; false, without a Python error, for another object or number. Runs
/// nothing of Python's.
bool is_plain_unsigned(PyObject* item, std::uint64_t& out) {
  static_assert(sizeof(unsigned long) == sizeof out, "of two functions for the same this is the quicker");
  if (!PyLong_CheckExact(item)) return false;
  out = PyLong_AsUnsignedLong(item);
  if (out != ~std::uint64_t{0} || PyErr_Occurred() == nullptr) return true;
  PyErr_Clear();
  return false;
}

/// One Python number (or a NumPy scalar); false with a Python error set.
bool to_unsigned(PyObject* item, std::uint64_t& out) {
  nb::object number = nb::steal(PyLong_CheckExact(item) ? Py_NewRef(item) : PyNumber_Index(item));
  if (!number.is_valid()) return false;
  out = PyLong_AsUnsignedLongLong(number.ptr());
  if (out != ~std::uint64_t{0} || !PyErr_Occurred()) return true;
  PyErr_Clear();
  out = static_cast<std::uint64_t>(PyLong_AsLongLong(number.ptr()));
  return !PyErr_Occurred();
}

/// With a Python error set: TypeError for that entry, with what Python says of it.
[[noreturn]] void refuse_entry(std::size_t index) {
  nb::python_error why;
  const nb::str said(why.value());
  nb::raise_from(why, PyExc_TypeError, "entry %zu of a list: %s", index, said.c_str());
}

/// A list or tuple of what a sequence has. None for what is no sequence, or a text.
nb::object sequence_of(nb::handle source) {
  if (PyUnicode_Check(source.ptr()) || PyBytes_Check(source.ptr())) return {};
  return nb::steal(PySequence_Fast(source.ptr(), "a sequence"));
}

/// As far as all are plain integers.
std::size_t read_plain(std::span<PyObject* const> items, std::span<std::uint64_t> into) {
  const PyObject* last = nullptr;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i] == last) {
      into[i] = into[i - 1];
      continue;
    }
    if (!is_plain_unsigned(items[i], into[i])) return i;
    last = items[i];
  }
  return items.size();
}

/// As far as all are bytes.
std::size_t view_plain(std::span<PyObject* const> items, std::span<BlobView> into) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!PyBytes_CheckExact(items[i])) return i;
#ifdef Py_LIMITED_API
    const char* const first = PyBytes_AsString(items[i]);
    const Py_ssize_t size = PyBytes_Size(items[i]);
#else
    const char* const first = PyBytes_AS_STRING(items[i]);
    const Py_ssize_t size = PyBytes_GET_SIZE(items[i]);
#endif
    into[i] = {reinterpret_cast<const std::byte*>(first), static_cast<std::size_t>(size)};
  }
  return items.size();
}

}  // namespace

bool Numbers::load(nb::handle source) noexcept {
  try {
    if (nb::ndarray_check(source)) return load_array(source);
    sequence_ = sequence_of(source);
    if (sequence_.is_valid()) {
      size_ = length_of(sequence_);
      return true;
    }
  } catch (const std::exception&) {  // out of memory
  }
  PyErr_Clear();
  return false;
}

bool Numbers::load_array(nb::handle source) {
  if (!nb::try_cast<Array>(source, array_)) return false;
  size_ = array_.shape(0);
  const bool wide =
      array_.dtype() == nb::dtype<std::uint64_t>() || array_.dtype() == nb::dtype<std::int64_t>();
  if (wide && (array_.stride(0) == 1 || size_ <= 1)) {
    in_place_ = static_cast<const std::uint64_t*>(array_.data());
    return true;
  }
  reader_ = reader_among<Array, std::uint64_t, std::int64_t, std::uint32_t, std::int32_t, std::uint16_t,
                         std::int16_t, std::uint8_t, std::int8_t>(array_);
  return reader_ != nullptr;
}

std::span<const std::uint64_t> Numbers::step(std::size_t first, std::size_t count, Step& into) const {
  if (in_place_ != nullptr) return {in_place_ + first, count};
  const std::span<std::uint64_t> numbers(into.data(), count);
  if (reader_ != nullptr) {
    reader_(array_, first, numbers);
    return numbers;
  }
  (void)kept_item(sequence_, size_, first);  // entries of another list may have changed this one
  Items items;
  fetch(sequence_, first, count, 1, items);
  // From an entry that is no plain integer on one by one: its __index__ may change the list.
  for (std::size_t i = read_plain({items.data(), count}, numbers); i < count; ++i) {
    const nb::object item = kept_item(sequence_, size_, first + i);
    if (!to_unsigned(item.ptr(), numbers[i])) refuse_entry(first + i);
  }
  return numbers;
}

bool Blob::load(nb::handle source) noexcept {
  Py_buffer buffer;
  if (PyObject_GetBuffer(source.ptr(), &buffer, PyBUF_SIMPLE) != 0) {
    PyErr_Clear();
    return false;
  }
  size_ = static_cast<std::size_t>(buffer.len);
  if (size_ > 0) std::memcpy(storage_.data(), buffer.buf, std::min(size_, kCapacity));
  PyBuffer_Release(&buffer);
  return true;
}

bool Blobs::load(nb::handle source) noexcept {
  try {
    if (nb::ndarray_check(source)) {
      if (!nb::try_cast<Matrix>(source, matrix_)) return false;
      size_ = matrix_.shape(0);
      return true;
    }
    sequence_ = sequence_of(source);
    if (sequence_.is_valid()) {
      size_ = length_of(sequence_);
      return true;
    }
  } catch (const std::exception&) {  // out of memory
  }
  PyErr_Clear();
  return false;
}

std::span<const BlobView> Blobs::step(std::size_t first, std::size_t count, Step& into) const {
  const std::span<BlobView> views(into.views.data(), count);
  if (matrix_.is_valid()) {
    const std::size_t width = matrix_.shape(1);
    const auto* next = reinterpret_cast<const std::byte*>(matrix_.data()) + first * width;
    fetch(next, count * width);
    for (BlobView& view : views) {
      view = {next, width};
      next += width;
    }
    return views;
  }
  (void)kept_item(sequence_, size_, first);
  Items items;
  fetch(sequence_, first, count, Blob::kCapacity, items);
  if (view_plain({items.data(), count}, views) == count) return views;
  // To ask another object for its bytes may run what changes the list: all are copied.
  into.copied.resize(kStep);
  for (std::size_t i = 0; i < count; ++i) {
    const nb::object item = kept_item(sequence_, size_, first + i);
    if (!into.copied[i].load(item)) {
      const nb::str type = nb::type_name(item.type());
      PyErr_Format(PyExc_TypeError, "entry %zu of a list: a bytes-like object is required, not '%s'",
                   first + i, type.c_str());
      throw nb::python_error();
    }
    views[i] = into.copied[i].view();
  }
  return views;
}

bool Buffer::load(nb::handle target) noexcept {
  PyBuffer_Release(&view_);
  if (PyObject_GetBuffer(target.ptr(), &view_, PyBUF_CONTIG) == 0) return true;
  PyErr_Clear();
  return false;
}

Status Buffer::fill(std::span<const std::byte> bytes) const {
  if (static_cast<std::size_t>(view_.len) < bytes.size()) {
    return failure(ErrorCode::kInvalidArgument, "out_buf has " + std::to_string(view_.len) + " bytes, of " +
                                                    std::to_string(bytes.size()) + " that are needed");
  }
  std::memcpy(view_.buf, bytes.data(), bytes.size());
  return {};
}

Result<std::size_t> same_length(std::initializer_list<std::size_t> sizes,
                                std::optional<std::size_t> expected) {
  const std::size_t length = expected.value_or(*sizes.begin());
  for (std::size_t size : sizes) {
    if (size != length) {
      return failure(ErrorCode::kInvalidArgument, "All input vectors/lists must have length num_iovs (" +
                                                      std::to_string(length) + "), one has " +
                                                      std::to_string(size));
    }
  }
  return length;
}

}  // namespace p2p::python
