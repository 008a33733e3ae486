// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "convert/streams.h"

#include <cstdint>

namespace p2p::python {
namespace nb = nanobind;
namespace {

constexpr std::uintptr_t kLegacy = 1;     // cudaStreamLegacy
constexpr std::uintptr_t kPerThread = 2;  // cudaStreamPerThread

/// torch.cuda where the program has imported torch and used a GPU with it; else nothing.
nb::object torch_cuda() {
  const nb::dict modules = nb::module_::import_("sys").attr("modules");
  if (!modules.contains("torch.cuda")) return {};
  nb::object cuda = modules["torch.cuda"];
  if (!nb::cast<bool>(cuda.attr("is_initialized")())) return {};
  return cuda;
}

}  // namespace

Stream::Stream(const nb::object& named) { take(named); }

Stream::Stream(const nb::object& named, const Tensor& tensor) {
  if (!named.is_none() || !tensor.on_device) {
    take(named);
    return;
  }
  if (!tensor.stream.is_valid()) {
    const nb::object cuda = torch_cuda();
    if (cuda.is_valid()) take(cuda.attr("current_stream")(tensor.device));
    return;
  }
  take(tensor.stream);
}

Stream::~Stream() {
  if (!device_.is_valid()) return;
  try {
    device_.attr("__exit__")(nb::none(), nb::none(), nb::none());
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("uccl.p2p: putting torch's device back");
  }
}

void Stream::take(const nb::object& named) {
  if (named.is_none()) return;
  if (nb::hasattr(named, "cuda_stream")) {
    take_handle(nb::object(named.attr("cuda_stream")));
    return enter_device(named);
  }
  if (nb::hasattr(named, "__cuda_stream__")) {
    const nb::object pair = named.attr("__cuda_stream__")();  // (version, handle)
    return take_handle(nb::object(pair[1]));
  }
  take_handle(named);
}

void Stream::take_handle(nb::handle number) {
  std::uintptr_t value = 0;
  if (PyBool_Check(number.ptr()) || !PyLong_Check(number.ptr()) || !nb::try_cast(number, value)) {
    const nb::str said = nb::repr(nb::type_name(number.type()));
    throw nb::type_error((std::string("stream: ") + said.c_str() +
                          " is neither a torch stream, nor a handle of one as a whole number, nor None")
                             .c_str());
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): Python has handles as numbers
  handle_ = reinterpret_cast<void*>(value == 0 ? kLegacy : value);
}

void Stream::enter_device(const nb::object& stream) {
  const auto value = reinterpret_cast<std::uintptr_t>(handle_);
  if ((value != kLegacy && value != kPerThread) || !nb::hasattr(stream, "device_index")) return;
  const nb::object cuda = torch_cuda();
  if (!cuda.is_valid()) return;
  const nb::object device = stream.attr("device_index");
  if (device.equal(cuda.attr("current_device")())) return;
  nb::object scope = cuda.attr("device")(device);
  scope.attr("__enter__")();
  device_ = std::move(scope);
}

}  // namespace p2p::python
