// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "convert/strides.h"
#include "state.h"

NB_MODULE(_p2p, module) {
  namespace nb = nanobind;
  using namespace p2p::python;
  using namespace nb::literals;

  module.doc() = "The engine behind uccl.p2p. Import that module instead.";
  // Threads of a daemon kind may hold endpoints when the interpreter ends; that is not worth a warning.
  nb::set_leak_warnings(false);
  module.def(
      "get_oob_ip",
      [] {
        return value_or_raise(
            p2p::Endpoint::announced_address(value_or_raise(p2p::Options::from_environment())));
      },
      "The address of this host that endpoints give to peers. Raises uccl.p2p.Error if the environment "
      "names\n"
      "interfaces that do not exist.");
  module.def(
      "last_error", [] { return last_error().message; },
      "Why this thread's latest call answered False: one sentence.");
  module.def(
      "_last_failure",
      []() -> Tuple<std::string, std::string> {
        const std::string_view code = to_string(last_error().code);
        return nb::make_tuple(nb::str(code.data(), code.size()), last_error().message);
      },
      "For uccl.p2p: what kind of failure that was, and last_error().");
  module.attr("__cuda__") = P2P_CUDA_VERSION;
  module.def("_close_all", &PyEndpoint::close_all, "For the interpreter's end.");
  module.def(
      "_name_gpus_by_bdf", [](bool on) { set_gpu_naming(on ? GpuNaming::kBdf : GpuNaming::kIndex); }, "on"_a,
      "For uccl.p2p: how results and metadata name GPUs.");

  bind_strides(module);
  PyClass endpoint(module, "Endpoint", nb::is_weak_referenceable(),
                   "All that this process needs to move bytes to and from others. Any number of threads.");
  bind_life(endpoint);
  bind_connections(endpoint);
  bind_memory(module, endpoint);
  bind_advertise(endpoint);
  bind_calls(endpoint);
  bind_descriptors(module, endpoint);
  bind_transfers(module, endpoint);
  bind_weights(module);
}
