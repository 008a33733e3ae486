// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "convert/tensors.h"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace p2p::python {
namespace nb = nanobind;
namespace {

nb::builtin_exception of_objects(const std::string& call) {
  return nb::type_error(
      (call + ": the memory holds Python objects, which are addresses in this process").c_str());
}

/// What a method without arguments says; `without` where the object has none of that name.
bool says(nb::handle object, const char* method, bool without) {
  const nb::object bound = nb::getattr(object, method, nb::none());
  return bound.is_none() ? without : nb::cast<bool>(bound());
}

/// Its strides count elements.
Layout layout_of_torch(nb::handle object) {
  const auto item = nb::cast<std::size_t>(object.attr("element_size")());
  std::vector<Dimension> dimensions;
  for (nb::handle extent : object.attr("shape")) dimensions.push_back({nb::cast<std::uint64_t>(extent), 0});
  std::size_t i = 0;
  for (nb::handle stride : object.attr("stride")()) {
    dimensions.at(i++).stride = nb::cast<std::int64_t>(stride) * static_cast<std::int64_t>(item);
  }
  return {item, std::move(dimensions)};
}

Tensor of_torch(nb::handle object, const std::string& call) {
  for (const char* view : {"conj", "neg"}) {
    if (!says(object, (std::string("is_") + view).c_str(), false)) continue;
    throw nb::value_error((call + ": the tensor is a view that shows other values than its memory has (" +
                           view + "); give its resolve_" + view + "()")
                              .c_str());
  }
  Tensor tensor{.address = nb::cast<std::uint64_t>(object.attr("data_ptr")()),
                .bytes = nb::cast<std::size_t>(object.attr("numel")()) *
                         nb::cast<std::size_t>(object.attr("element_size")()),
                .layout = {},
                .device = {},
                .stream = {}};
  if (!says(object, "is_contiguous", true)) tensor.layout = layout_of_torch(object);
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
  std::vector<Dimension> dimensions;
  for (std::size_t i = 0; i != shape.size(); ++i) {
    const auto extent = nb::cast<std::uint64_t>(shape[i]);
    bytes *= extent;
    if (!strides.is_none()) dimensions.push_back({extent, nb::cast<std::int64_t>(strides[i])});
  }
  const nb::tuple data = nb::cast<nb::tuple>(said["data"]);
  return Tensor{.address = data[0].is_none() ? 0 : nb::cast<std::uint64_t>(data[0]),
                .bytes = bytes,
                .on_device = true,
                .writable = !nb::cast<bool>(data[1]),
                .layout = {item, std::move(dimensions)},
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
  // A buffer of buffers, as some libraries of pictures have them, says with suboffsets where each lies.
  const bool scattered =
      view.suboffsets != nullptr &&
      std::any_of(view.suboffsets, view.suboffsets + view.ndim, [](Py_ssize_t at) { return at >= 0; });
  std::vector<Dimension> dimensions;
  if (PyBuffer_IsContiguous(&view, 'C') == 0) {
    for (int i = 0; i != view.ndim; ++i) {
      dimensions.push_back({static_cast<std::uint64_t>(view.shape[i]), view.strides[i]});
    }
  }
  const bool objects = view.format != nullptr && has_objects(view.format);
  const Tensor tensor{.address = reinterpret_cast<std::uint64_t>(view.buf),
                      .bytes = static_cast<std::size_t>(view.len),
                      .writable = view.readonly == 0,
                      .layout = {static_cast<std::size_t>(view.itemsize), std::move(dimensions)},
                      .device = {},
                      .stream = {}};
  PyBuffer_Release(&view);
  if (objects) throw of_objects(call);
  if (scattered) {
    throw nb::value_error(
        (call + ": the buffer's rows lie at addresses of their own; give it one by one").c_str());
  }
  return tensor;
}

std::optional<Tensor> from_dlpack(nb::handle object, const std::string&) {
  nb::ndarray<nb::ro> array;
  if (!nb::try_cast(object, array, false)) return std::nullopt;  // a converted copy would be another memory
  const std::size_t item = array.itemsize();
  std::vector<Dimension> dimensions;
  for (std::size_t i = 0; i != array.ndim(); ++i) {
    dimensions.push_back({array.shape(i), array.stride(i) * static_cast<std::int64_t>(item)});
  }
  return Tensor{.address = reinterpret_cast<std::uint64_t>(array.data()),
                .bytes = array.nbytes(),
                .on_device = array.device_type() == nb::device::cuda::value,
                .layout = {item, std::move(dimensions)},
                .device = {},
                .stream = nb::none()};  // __dlpack__ has had the default stream wait
}

[[noreturn]] void refuse(const std::string& text) { throw nb::value_error(text.c_str()); }

void check(const Tensor& tensor, const std::string& call, Use use) {
  const bool target = use == Use::kTarget;
  if (target && !tensor.writable) refuse(call + ": the memory is read-only");
  const Layout& layout = tensor.layout;
  if (layout.one_run() || use == Use::kRange) return;
  if (use == Use::kDescribed) {
    refuse(call + ": the tensor is not contiguous, and a description names one range of bytes: " +
           layout.text() + "; give a contiguous() copy, or each run");
  }
  if (layout.runs() > Layout::kMostRuns) {
    refuse(call + ": the tensor is not contiguous: " + layout.text() + ", and one transfer takes at most " +
           std::to_string(Layout::kMostRuns) + "; give a contiguous() copy, or parts of the tensor");
  }
  if (target && layout.overlaps()) {
    refuse(call + ": elements of the tensor share memory, so that it cannot be filled: " + layout.text());
  }
}

}  // namespace

Tensor tensor_of(nb::handle object, const char* call, Use use) {
  for (const auto from : {from_torch, from_cuda_array, from_buffer, from_dlpack}) {
    auto tensor = from(object, call);
    if (!tensor) continue;
    check(*tensor, call, use);
    return std::move(*tensor);
  }
  const nb::str type = nb::type_name(object.type());
  throw nb::type_error((std::string(call) + ": " + type.c_str() +
                        " is neither a tensor nor an array or buffer; an address needs its size")
                           .c_str());
}

}  // namespace p2p::python
