// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <string_view>
#include <thread>

#include "errors.h"

namespace p2p::python {
namespace nb = nanobind;
namespace {

constexpr unsigned kMostWorkers = 8;

/// Python gives times in seconds.
template <class Duration>
Duration seconds(nb::handle value, std::string_view name) {
  const double given = nb::cast<double>(value);
  if (!(given >= 0 && given < 1e9)) {
    throw nb::value_error((std::string(name) + " must be seconds, at least 0").c_str());
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(given));
}

/// False for a name that no option has.
bool set(Options& options, std::string_view name, nb::handle value) {
  if (name == "listen_address") return options.listen_address = nb::cast<std::string>(value), true;
  if (name == "port") return options.port = nb::cast<std::uint16_t>(value), true;
  if (name == "transports") return options.transports = nb::cast<std::vector<std::string>>(value), true;
  if (name == "require_transport") return options.require_transport = nb::cast<bool>(value), true;
  if (name == "workers") return options.workers = nb::cast<unsigned>(value), true;
  if (name == "streams") return options.streams = nb::cast<unsigned>(value), true;
  if (name == "interfaces") return options.interfaces = nb::cast<std::vector<std::string>>(value), true;
  if (name == "keepalive") return options.keepalive = seconds<std::chrono::milliseconds>(value, name), true;
  if (name == "connect_timeout") {
    return options.connect_timeout = seconds<std::chrono::milliseconds>(value, name), true;
  }
  if (name == "key_file") return options.key_file = nb::cast<std::string>(value), true;
  if (name == "batch_bytes") return options.batch_bytes = nb::cast<std::size_t>(value), true;
  return false;
}

}  // namespace

Options options_from(const nb::kwargs& keywords, std::optional<unsigned> cpus) {
  Options options = value_or_raise(Options::from_environment());
  for (const auto& [key, value] : keywords) {
    const std::string name = nb::cast<std::string>(key);
    if (!set(options, name, value)) {
      throw nb::type_error(("Endpoint() got an unexpected keyword argument '" + name + "'").c_str());
    }
  }
  if (options.workers == 0 && cpus.value_or(0) > 0) {
    const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
    options.workers = std::min({*cpus, cores, kMostWorkers});
  }
  return options;
}

}  // namespace p2p::python
