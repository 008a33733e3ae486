// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "sequences.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>

#include "errors.h"

namespace p2p::python {
namespace nb = nanobind;
namespace {

/// Copies a strided integer array of any width; false for another kind of number.
template <class T, class Array>
bool copy_as(const Array& array, std::vector<std::uint64_t>& out) {
  if (array.dtype() != nb::dtype<T>()) return false;
  const T* first = static_cast<const T*>(array.data());
  const std::int64_t stride = array.stride(0);
  out.resize(array.shape(0));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<std::uint64_t>(first[static_cast<std::int64_t>(i) * stride]);
  }
  return true;
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

}  // namespace

bool Numbers::load(nb::handle source) noexcept {
  try {
    if (nb::ndarray_check(source)) {
      Array array;
      return nb::try_cast<Array>(source, array) && load_array(array);
    }
    if (load_sequence(source)) return true;
  } catch (const std::exception&) {  // out of memory, or an item's __index__ raised
  }
  PyErr_Clear();
  return false;
}

bool Numbers::load_array(const Array& array) {
  const bool wide = array.dtype() == nb::dtype<std::uint64_t>() || array.dtype() == nb::dtype<std::int64_t>();
  if (wide && (array.stride(0) == 1 || array.shape(0) <= 1)) {
    array_ = array;
    view_ = {static_cast<const std::uint64_t*>(array.data()), array.shape(0)};
    return true;
  }
  const bool copied = copy_as<std::uint64_t>(array, copied_) || copy_as<std::int64_t>(array, copied_) ||
                      copy_as<std::uint32_t>(array, copied_) || copy_as<std::int32_t>(array, copied_) ||
                      copy_as<std::uint16_t>(array, copied_) || copy_as<std::int16_t>(array, copied_) ||
                      copy_as<std::uint8_t>(array, copied_) || copy_as<std::int8_t>(array, copied_);
  view_ = copied_;
  return copied;
}

bool Numbers::load_sequence(nb::handle source) {
  if (PyUnicode_Check(source.ptr()) || PyBytes_Check(source.ptr())) return false;
  nb::object items = nb::steal(PySequence_Fast(source.ptr(), "a sequence of integers"));
  if (!items.is_valid()) return false;
  PyObject* const all = items.ptr();
  const bool list = PyList_Check(all);
  const Py_ssize_t count = length_of(all, list);
  copied_.resize(static_cast<std::size_t>(count));
  const PyObject* last = nullptr;  // sizes are often one object again and again
  for (Py_ssize_t i = 0; i < count; ++i) {
    std::uint64_t& number = copied_[static_cast<std::size_t>(i)];
    PyObject* const entry = item_of(all, list, i);
    if (entry == last) {
      number = copied_[static_cast<std::size_t>(i) - 1];
      continue;
    }
    last = is_plain_unsigned(entry, number) ? entry : nullptr;
    if (last != nullptr) continue;
    // An item's __index__ may change the list, and drop the item.
    const nb::object item = nb::borrow(item_of(all, list, i));
    if (!to_unsigned(item.ptr(), number) || length_of(all, list) != count) return false;
  }
  view_ = copied_;
  return true;
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

std::span<const std::byte> Blob::bytes() const { return {storage_.data(), std::min(size_, kCapacity)}; }

bool Blobs::load(nb::handle source) noexcept {
  try {
    if (nb::ndarray_check(source)) return nb::try_cast<Matrix>(source, matrix_);
    if (PyUnicode_Check(source.ptr()) || PyBytes_Check(source.ptr())) return false;
    // A tuple of its own: the list may be changed by another thread while its items are in use.
    sequence_ = nb::steal(PySequence_Tuple(source.ptr()));
    if (sequence_.is_valid()) {
      const Py_ssize_t count = length_of(sequence_.ptr(), false);
      items_.reserve(static_cast<std::size_t>(count));
      for (Py_ssize_t i = 0; i < count; ++i) {
        if (!load_item(item_of(sequence_.ptr(), false, i))) return false;
      }
      return true;
    }
  } catch (const std::exception&) {  // out of memory
  }
  PyErr_Clear();
  return false;
}

bool Blobs::load_item(nb::handle item) {
  if (PyBytes_Check(item.ptr())) {
#ifdef Py_LIMITED_API
    const char* const first = PyBytes_AsString(item.ptr());
    const Py_ssize_t size = PyBytes_Size(item.ptr());
#else
    const char* const first = PyBytes_AS_STRING(item.ptr());
    const Py_ssize_t size = PyBytes_GET_SIZE(item.ptr());
#endif
    items_.emplace_back(reinterpret_cast<const std::byte*>(first), static_cast<std::size_t>(size));
    return true;
  }
  Py_buffer buffer;
  if (PyObject_GetBuffer(item.ptr(), &buffer, PyBUF_SIMPLE) != 0) {
    PyErr_Clear();
    return false;
  }
  const auto* first = static_cast<const std::byte*>(buffer.buf);
  copied_.emplace_back(first, first + buffer.len);
  PyBuffer_Release(&buffer);
  items_.emplace_back(copied_.back());
  return true;
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
