// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/memory.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "convert/tensors.h"
#include "p2p/shared_memory.h"
#include "plan.h"
#include "state.h"

namespace p2p::python {
namespace nb = nanobind;
namespace {

/// The element type that a registration may name; kept for callers, transfers move bytes.
enum class FloatType { kUndefined, kFloat16, kBFloat16, kFloat32, kFloat8E4M3FN, kFloat8E5M2 };

constexpr double kDeregister = 10;  // seconds

std::optional<std::chrono::nanoseconds> lasting(std::optional<double> seconds) {
  if (!seconds) return std::nullopt;
  if (!(*seconds > 0)) throw nb::value_error("expires must be a number of seconds, above 0");
  constexpr double kLongest = 1e9;  // 30 years: far from the clock's overflow
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(std::min(*seconds, kLongest)));
}

OkAndId reg(PyEndpoint& self, std::uint64_t ptr, std::size_t size, const RegionOptions& options) {
  const auto state = self.state_or_raise();
  Result<std::uint64_t> id;
  {
    Released released;
    id = state->memory.add(state->engine, ptr, size, options);
  }
  if (!id) {
    set_last_error(id.error());
    return nb::make_tuple(false, 0);
  }
  state->adopt_gpu(*id);
  return nb::make_tuple(true, *id);
}

/// What is to be registered, and how.
struct Wanted {
  std::uint64_t address;
  std::size_t size;
  RegionOptions options;
};

using OkAndIds = Tuple<bool, std::vector<std::uint64_t>>;

OkAndIds regv(PyEndpoint& self, const std::vector<Wanted>& ranges) {
  const auto state = self.state_or_raise();
  std::vector<std::uint64_t> ids;
  Status status;
  {
    Released released;
    for (const Wanted& range : ranges) {
      const Result<std::uint64_t> id =
          state->memory.add(state->engine, range.address, range.size, range.options);
      if (id) {
        ids.push_back(*id);
      } else {
        status = tl::unexpected(id.error());
        break;
      }
    }
    if (!status) {
      for (std::uint64_t id : ids) (void)state->memory.remove(id, kSlice);
      ids.clear();
    }
  }
  return nb::make_tuple(succeeded(status), ids);
}

/// Waits in slices for what still uses the region; a region that stays in use stays registered.
Status deregister(State& state, std::uint64_t mr_id, std::optional<double> timeout) {
  const Deadline deadline = deadline_in(timeout.value_or(kDeregister));
  for (;;) {
    Status status;
    {
      Released released;
      status = state.memory.remove(mr_id, next_slice(deadline));
    }
    if (status || status.error().code != ErrorCode::kTimedOut || passed(deadline)) return status;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

using Names = std::optional<std::vector<std::string>>;

/// What restricts a region, as Python gives it.
RegionOptions restricted(bool read_only, Names peers, std::optional<double> expires) {
  return {.read_only = read_only,
          .peers = std::move(peers).value_or(std::vector<std::string>()),
          .expires = lasting(expires)};
}

OkAndIds regv_addresses(PyEndpoint& self, const Numbers& ptrs, const Numbers& sizes, bool read_only,
                        Names peers, std::optional<double> expires) {
  const Local local = at_addresses(ptrs, sizes);
  const RegionOptions options = restricted(read_only, std::move(peers), expires);
  std::vector<Wanted> ranges;
  for (const LocalSpan& span : *local.spans) {
    ranges.push_back({reinterpret_cast<std::uint64_t>(span.data), span.size, options});
  }
  return regv(self, ranges);
}

OkAndIds regv_tensors(PyEndpoint& self, const nb::typed<nb::list, nb::any>& tensors, bool read_only,
                      Names peers, std::optional<double> expires) {
  const RegionOptions options = restricted(read_only, std::move(peers), expires);
  std::vector<Wanted> ranges;
  for (nb::handle object : tensors) {
    const Tensor tensor = tensor_of(object, "regv", Use::kRange);
    const auto [address, size] = tensor.range();
    ranges.push_back({address, size, options});
    ranges.back().options.read_only |= !tensor.writable;
  }
  return regv(self, ranges);
}

void bind_reg(PyClass& endpoint) {
  using namespace nb::literals;
  endpoint
      .def(
          "reg",
          [](PyEndpoint& self, std::uint64_t ptr, std::size_t size, FloatType, bool read_only,
             std::optional<std::vector<std::string>> peers, std::optional<double> expires) {
            return reg(self, ptr, size, restricted(read_only, std::move(peers), expires));
          },
          "ptr"_a, "size"_a, "floatType"_a = FloatType::kUndefined, nb::kw_only(), "read_only"_a = false,
          "peers"_a = nb::none(), "expires"_a = nb::none(),
          "Registers size bytes at ptr (host or GPU, any alignment): (ok, mr_id), ids from 1.\n\n"
          "The memory must stay allocated until dereg(). The same range may be registered again. read_only: "
          "peers\n"
          "may not write to it. peers: the names (ep.peer(conn_id)['identity']) that may use it; asks for "
          "keys\n"
          "or certificates. expires: seconds from now on in which peers may begin to use it (None: for "
          "ever).")
      .def(
          "reg",
          [](PyEndpoint& self, nb::handle object, bool read_only,
             std::optional<std::vector<std::string>> peers, std::optional<double> expires) {
            const Tensor tensor = tensor_of(object, "reg", Use::kRange);
            const auto [address, bytes] = tensor.range();
            return reg(self, address, bytes,
                       restricted(read_only || !tensor.writable, std::move(peers), expires));
          },
          "tensor"_a, nb::kw_only(), "read_only"_a = false, "peers"_a = nb::none(), "expires"_a = nb::none(),
          "The same for all of a tensor, array or buffer, which must be kept until dereg(); with the gaps "
          "of one\n"
          "that has some. TypeError or ValueError for what is none. Peers may not write to memory that is "
          "read-only\nhere.");
}

/// Memory of p2p/shared_memory.h as Python has it: a buffer.
struct SharedBuffer {
  std::shared_ptr<std::byte> data;
  std::size_t bytes = 0;
};

int fill_view(PyObject* self, Py_buffer* view, int flags) {
  const auto* const buffer = nb::inst_ptr<SharedBuffer>(nb::handle(self));
  return PyBuffer_FillInfo(view, self, buffer->data.get(), static_cast<Py_ssize_t>(buffer->bytes), 0, flags);
}

SharedBuffer allocate(PyEndpoint& self, std::size_t bytes) {
  (void)self.state_or_raise();
  return {value_or_raise(allocate_shared(bytes)), bytes};
}

void bind_allocate(nb::module_& module, PyClass& endpoint) {
  using namespace nb::literals;
  static std::array slots{PyType_Slot{Py_bf_getbuffer, reinterpret_cast<void*>(&fill_view)},
                          PyType_Slot{0, nullptr}};
  nb::class_<SharedBuffer>(module, "SharedBuffer", nb::type_slots(slots.data()),
                           "Memory of Endpoint.allocate(), a buffer of bytes.")
      .def_prop_ro(
          "ptr", [](const SharedBuffer& self) { return reinterpret_cast<std::uint64_t>(self.data.get()); },
          "Its address.")
      .def_prop_ro(
          "nbytes", [](const SharedBuffer& self) { return self.bytes; }, "Bytes.")
      .def("__len__", [](const SharedBuffer& self) { return self.bytes; });
  endpoint.def(
      "allocate", &allocate, "nbytes"_a,
      "Host memory, of zeros, that peers in other containers of this host map and copy to and from\n"
      "directly once it is registered: a buffer, for numpy.frombuffer(), torch.frombuffer(), reg() and\n"
      "whatever takes one. It is freed once the buffer, its views and the registrations in it are gone.\n"
      "Whoever may use a registration in it from another container gets all of it. Raises\n"
      "uccl.p2p.Error.");
}

/// What the modules beside this one ask before they register and start: address and bytes.
Tuple<std::uint64_t, std::size_t> range_of(nb::handle tensor, const std::string& call,
                                           std::optional<bool> filled) {
  const Use use = !filled ? Use::kRange : *filled ? Use::kTarget : Use::kSource;
  const auto [address, size] = tensor_of(tensor, call.c_str(), use).range();
  return nb::make_tuple(address, size);
}

}  // namespace

void bind_memory(nb::module_& module, PyClass& endpoint) {
  using namespace nb::literals;
  module.def(
      "_range_of", &range_of, "tensor"_a, "call"_a, "filled"_a,
      "The range of memory that a tensor lies in, gaps and all. filled: whether a transfer is to write or "
      "to\nread its elements; ValueError where it cannot. None: neither.");
  nb::enum_<FloatType>(module, "FloatType",
                       "The element type of a registration; bytes are moved whatever it says.")
      .value("kUndefined", FloatType::kUndefined)
      .value("kFloat16", FloatType::kFloat16)
      .value("kBFloat16", FloatType::kBFloat16)
      .value("kFloat32", FloatType::kFloat32)
      .value("kFloat8E4M3FN", FloatType::kFloat8E4M3FN)
      .value("kFloat8E5M2", FloatType::kFloat8E5M2)
      .export_values();
  bind_reg(endpoint);
  bind_allocate(module, endpoint);
  endpoint
      .def("regv", &regv_addresses, "ptrs"_a, "sizes"_a, nb::kw_only(), "read_only"_a = false,
           "peers"_a = nb::none(), "expires"_a = nb::none(),
           "Registers many ranges, all or none: (ok, list of ids). Raises RuntimeError if lengths differ.\n\n"
           "The keywords are those of reg(), for all of them.")
      .def("regv", &regv_tensors, "tensors"_a, nb::kw_only(), "read_only"_a = false, "peers"_a = nb::none(),
           "expires"_a = nb::none(),
           "The same for a list of tensors, arrays or buffers. Peers may not write to those that "
           "are\nread-only here.")
      .def(
          "dereg",
          [](PyEndpoint& self, std::uint64_t mr_id, std::optional<double> timeout) {
            return succeeded(deregister(*self.state_or_raise(), mr_id, timeout));
          },
          "mr_id"_a, "timeout"_a = nb::none(),
          "Ends a registration: peers are shut out at once, and the transfers here that use it have timeout\n"
          "seconds (default 10) to end. False for an unknown id, or if they did not.");
}

}  // namespace p2p::python
