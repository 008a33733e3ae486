// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "convert/tensors.h"

#include <nanobind/ndarray.h>

#include <optional>
#include <string>
#include <string_view>

namespace p2p::python {
namespace nb = nanobind;
namespace {

nb::builtin_exception with_gaps(const std::string& call) {
  return nb::value_error(
      (call + ": the tensor is not contiguous; give a contiguous() copy, or its pieces").c_str());
}

nb::builtin_exception of_objects(const std::string& call) {
  return nb::type_error(
      (call + ": the memory holds Python objects, which are addresses in this process").c_str());
}

/// What a method without arguments says; `without` where the object has none of that name.
bool says(nb::handle object, const char* method, bool without) {
  const nb::object bound = nb::getattr(object, method, nb::none());
  return bound.is_none() ? without : nb::cast<bool>(bound());
}

Tensor of_torch(nb::handle object, const std::string& call) {
  if (!says(object, "is_contiguous", true)) throw with_gaps(call);
  for (const char* view : {"conj", "neg"}) {
    if (!says(object, (std::string("is_") + view).c_str(), false)) continue;
    throw nb::value_error((call + ": the tensor is a view that shows other values than its memory has (" +
                           view + "); give its resolve_" + view + "()")
                              .c_str());
  }
  Tensor tensor{.address = nb::cast<std::uint64_t>(object.attr("data_ptr")()),
                .bytes = nb::cast<std::size_t>(object.attr("numel")()) *
                         nb::cast<std::size_t>(object.attr("element_size")()),
                .device = {},
                .stream = {}};
  if (nb::hasattr(object, "is_cuda") && nb::cast<bool>(object.attr("is_cuda"))) {
    tensor.on_device = true;
    tensor.device = object.attr("device");
  }
  return tensor;
}

std::optional<Tensor> from_torch(nb::handle object, const std::string& call) {
  if (!nb::hasattr(object, "data_ptr")) return std::nullopt;
  try {
    return of_torch(object, call);
  } catch (nb::python_error& error) {  // of layouts without strides, or without memory of their own
    if (!error.matches(PyExc_RuntimeError)) throw;
    throw nb::value_error((call + ": " + nb::str(error.value()).c_str()).c_str());
  }
}

/// Version 3 of the interface, and those before it.
std::optional<Tensor> from_cuda_array(nb::handle object, const std::string& call) {
  if (!nb::hasattr(object, "__cuda_array_interface__")) return std::nullopt;
  const nb::dict said = nb::cast<nb::dict>(object.attr("__cuda_array_interface__"));
  const std::string type = nb::cast<nb::str>(said["typestr"]).c_str();
  if (type.at(1) == 'O') throw of_objects(call);
  const auto item = std::stoull(type.substr(2));
  const nb::tuple shape = nb::cast<nb::tuple>(said["shape"]);
  const nb::object strides = nb::object(said.get("strides", nb::none()));
  std::size_t bytes = item;
  for (nb::handle extent : shape) bytes *= nb::cast<std::size_t>(extent);
  if (!strides.is_none() && bytes != 0) {
    std::size_t packed = item;
    for (std::size_t i = shape.size(); i-- > 0;) {
      const auto extent = nb::cast<std::size_t>(shape[i]);
      if (extent != 1 && nb::cast<std::int64_t>(strides[i]) != static_cast<std::int64_t>(packed)) {
        throw with_gaps(call);
      }
      packed *= extent;
    }
  }
  const nb::tuple data = nb::cast<nb::tuple>(said["data"]);
  return Tensor{.address = data[0].is_none() ? 0 : nb::cast<std::uint64_t>(data[0]),
                .bytes = bytes,
                .on_device = true,
                .writable = !nb::cast<bool>(data[1]),
                .device = {},
                .stream = nb::object(said.get("stream", nb::none()))};
}

/// Whether a buffer's elements are Python objects, or have some in them. Names of fields stand between
/// colons.
bool has_objects(std::string_view format) {
  bool named = false;
  for (const char letter : format) {
    if (letter == ':') named = !named;
    if (letter == 'O' && !named) return true;
  }
  return false;
}

std::optional<Tensor> from_buffer(nb::handle object, const std::string& call) {
  if (!PyObject_CheckBuffer(object.ptr())) return std::nullopt;
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_FULL_RO) != 0) {
    PyErr_Clear();  // an array of a type that buffers do not know: DLPack may
    return std::nullopt;
  }
  const bool packed = PyBuffer_IsContiguous(&view, 'C') != 0;
  const bool objects = view.format != nullptr && has_objects(view.format);
  const Tensor tensor{.address = reinterpret_cast<std::uint64_t>(view.buf),
                      .bytes = static_cast<std::size_t>(view.len),
                      .writable = view.readonly == 0,
                      .device = {},
                      .stream = {}};
  PyBuffer_Release(&view);
  if (objects) throw of_objects(call);
  if (!packed) throw with_gaps(call);
  return tensor;
}

std::optional<Tensor> from_dlpack(nb::handle object, const std::string& call) {
  nb::ndarray<nb::ro> array;
  if (!nb::try_cast(object, array, false)) return std::nullopt;  // a converted copy would be another memory
  std::int64_t packed = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    const auto extent = static_cast<std::int64_t>(array.shape(i));
    if (extent > 1 && array.size() != 0 && array.stride(i) != packed) throw with_gaps(call);
    packed *= extent;
  }
  return Tensor{.address = reinterpret_cast<std::uint64_t>(array.data()),
                .bytes = array.nbytes(),
                .on_device = array.device_type() == nb::device::cuda::value,
                .device = {},
                .stream = nb::none()};  // __dlpack__ has had the default stream wait
}

}  // namespace

Tensor tensor_of(nb::handle object, const char* call) {
  for (const auto from : {from_torch, from_cuda_array, from_buffer, from_dlpack}) {
    if (auto tensor = from(object, call)) return *tensor;
  }
  const nb::str type = nb::type_name(object.type());
  throw nb::type_error((std::string(call) + ": " + type.c_str() +
                        " is neither a tensor nor a contiguous array or buffer; an address needs its size")
                           .c_str());
}

Tensor writable_tensor_of(nb::handle object, const char* call) {
  Tensor tensor = tensor_of(object, call);
  if (!tensor.writable) throw nb::value_error((std::string(call) + ": the memory is read-only").c_str());
  return tensor;
}

}  // namespace p2p::python
