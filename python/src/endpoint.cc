// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "convert/options.h"
#include "p2p/metrics.h"
#include "state.h"

namespace p2p::python {
namespace nb = nanobind;
namespace {

// Both together, and the end of the interpreter, are the second that docs/python.md promises.
constexpr std::chrono::milliseconds kExitDrain{400};

// How long an end waits until the peers have heard of it.
constexpr std::chrono::milliseconds kGoodbye{300};

constexpr std::chrono::seconds kExitWait{2};

/// The endpoints of this process. Guarded by the GIL, which a fork also holds.
std::set<PyEndpoint*>& living() {
  static auto* endpoints = new std::set<PyEndpoint*>;
  return *endpoints;
}

/// The thread that ends the interpreter, once it does. Guarded by the GIL.
std::optional<std::thread::id> ending;

/// For a daemon thread at that time: it is not to fail for what is no fault of its own.
[[noreturn]] void park() {
  PyEval_SaveThread();
  for (;;) pause();
}

nb::dict counters(const Stats& stats) {
  nb::dict out;
  out["transfers_started"] = stats.transfers_started;
  out["transfers_completed"] = stats.transfers_completed;
  out["transfers_failed"] = stats.transfers_failed;
  out["bytes_written"] = stats.bytes_written;
  out["bytes_read"] = stats.bytes_read;
  out["messages_received"] = stats.messages_received;
  out["notifications_sent"] = stats.notifications_sent;
  out["notifications_received"] = stats.notifications_received;
  out["notifications_delayed"] = stats.notifications_delayed;
  out["batches_retried"] = stats.batches_retried;
  out["reads_paused"] = stats.reads_paused;
  out["channels_lost"] = stats.channels_lost;
  out["channels_returned"] = stats.channels_returned;
  out["session_resumes"] = stats.session_resumes;
  out["pieces_queued"] = stats.pieces_queued;
  out["channels"] = stats.channels;
  out["channels_wanted"] = stats.channels_wanted;
  out["channels_encrypted"] = stats.channels_encrypted;
  out["strangers_refused"] = stats.strangers_refused;
  out["connections_refused"] = stats.connections_refused;
  out["connections_waiting"] = stats.connections_waiting;
  out["bytes_kept_for_peers"] = stats.bytes_kept_for_peers;
  out["registered_regions"] = stats.registered_regions;
  out["registered_bytes"] = stats.registered_bytes;
  for (const TransportBytes& one : stats.by_transport) {
    out[(one.transport + "_bytes_written").c_str()] = one.written;
    out[(one.transport + "_bytes_read").c_str()] = one.read;
  }
  return out;
}

nb::typed<nb::dict, nb::str, nb::int_> stats_of(const PyEndpoint& self,
                                                std::optional<std::uint64_t> conn_id) {
  const auto state = self.state_or_raise();
  if (!conn_id) return counters(state->engine.stats());
  return counters(value_or_raise(find_link(*state, *conn_id))->connection.stats());
}

nb::typed<nb::dict, nb::str, nb::str> transports_of(const PyEndpoint& self) {
  const auto state = self.state_or_raise();
  nb::dict out;
  for (const TransportStatus& one : state->engine.transports()) out[one.name.c_str()] = one.reason;
  return out;
}

using Clock = std::chrono::steady_clock;

std::chrono::nanoseconds left_until(Clock::time_point end) {
  return std::max<std::chrono::nanoseconds>(end - Clock::now(), std::chrono::nanoseconds{0});
}

/// Lets what is under way end until `deadline`, then says goodbye to the peers.
void drain(State& state, Clock::time_point deadline) {
  state.closing.store(true);
  state.listing = LocalListing();
  state.transfers.cancel_receives();  // nothing says that their messages will ever come
  for (const Connection& connection : state.engine.connections()) {
    (void)connection.close(left_until(deadline));
  }
  state.transfers.cancel_all();
}

/// What a peer has not heard of by `deadline` ends all the same.
void end(State& state, Clock::time_point deadline) {
  state.engine.close(left_until(deadline));
  state.connections.clear();
  state.memory.clear();
}

}  // namespace

PyEndpoint::PyEndpoint(std::optional<std::int32_t> gpu, const nb::kwargs& keywords) {
  if (gpu && *gpu < 0) throw nb::value_error("local_gpu_idx must be at least 0");
  const Options options = options_from(keywords);
  {
    Released released;
    Result<Endpoint> engine = Endpoint::create(options);
    if (engine) {
      state_ = std::make_shared<State>(std::move(*engine));
    } else {
      set_last_error(engine.error());
    }
  }
  if (!state_) raise(Error{ErrorCode::kUnavailable, last_error().message});
  state_->connect_timeout = options.connect_timeout;
  state_->socket_dir = options.socket_dir;
  state_->gpu = gpu.value_or(0);
  state_->gpu_from_memory = !gpu;
  state_->engine.set_note(encode_note(state_->identity()));
  // Without an entry only connect_local from elsewhere is lost, and that call says what it looked for.
  if (auto entry = LocalListing::announce(state_->engine, state_->gpu, options.socket_dir)) {
    state_->listing = std::move(*entry);
  }
  living().insert(this);
}

PyEndpoint::~PyEndpoint() {
  living().erase(this);
  close(kExitDrain);
}

Result<std::shared_ptr<State>> PyEndpoint::state() const {
  if (ending && *ending != std::this_thread::get_id()) park();
  if (!state_) return failure(ErrorCode::kNotFound, "the endpoint is closed");
  if (state_->generation != fork_generation()) {
    return failure(ErrorCode::kUnavailable,
                   "the endpoint was made before fork(), and works in the parent alone");
  }
  return state_;
}

void PyEndpoint::close(std::chrono::nanoseconds timeout) {
  if (!state_) return;
  std::shared_ptr<State> state = std::move(state_);
  state_ = nullptr;
  if (state->generation != fork_generation()) {
    // Its threads live in the parent only; what is left here can be neither used nor taken apart.
    new std::shared_ptr<State>(std::move(state));
    return;
  }
  Released released;
  drain(*state, std::chrono::steady_clock::now() + timeout);
  end(*state, std::chrono::steady_clock::now() + kGoodbye);
  state.reset();
}

// Beside a peer that stands still every one takes the time that it has: they take it at the same time.
void PyEndpoint::close_together() {
  std::vector<std::shared_ptr<State>> states;
  for (PyEndpoint* endpoint : living()) {
    if (!endpoint->state_ || endpoint->state_->generation != fork_generation()) continue;
    states.push_back(std::move(endpoint->state_));
    endpoint->state_ = nullptr;
  }
  Released released;
  const auto drained = std::chrono::steady_clock::now() + kExitDrain;
  for (const auto& state : states) drain(*state, drained);
  const auto ended = std::chrono::steady_clock::now() + kGoodbye;
  for (const auto& state : states) end(*state, ended);
  states.clear();
}

void PyEndpoint::close_all() {
  ending = std::this_thread::get_id();
  close_together();
  const auto end = std::chrono::steady_clock::now() + kExitWait;
  while (Released::away() > 0 && std::chrono::steady_clock::now() < end) {
    PyThreadState* thread = PyEval_SaveThread();  // not counted, unlike Released
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
    PyEval_RestoreThread(thread);
  }
}

Result<std::shared_ptr<const Link>> find_link(const State& state, std::uint64_t conn_id) {
  if (auto link = state.connections.find(conn_id)) return link;
  return failure(ErrorCode::kNotFound, "Invalid conn_id " + std::to_string(conn_id));
}

void bind_life(PyClass& endpoint) {
  endpoint
      .def(
          "__init__",
          [](PyEndpoint* self, std::optional<std::int32_t> gpu, std::optional<unsigned> /*num_cpus*/,
             const nb::kwargs& options) { new (self) PyEndpoint(gpu, options); },
          nb::arg("local_gpu_idx") = nb::none(), nb::arg("num_cpus") = nb::none(), nb::arg("options"),
          "Starts the engine: listener, threads, transports.\n\n"
          "local_gpu_idx is this process's GPU index as peers are told (any number; no GPU is needed).\n"
          "num_cpus changes nothing, as with newer versions of UCCL; workers= sets the number of threads.\n"
          "Keyword options override the environment: every UCCL_P2P_*\n"
          "variable by its name in small letters (workers=2, gpu_blocks=32), and transports, keepalive and\n"
          "connect_timeout (both in seconds), require_transport, network_only. Raises uccl.p2p.Error.")
      .def("__repr__", [](const PyEndpoint&) { return "<UCCL P2P Endpoint>"; })
      .def(
          "close",
          [](PyEndpoint& self, std::optional<double> timeout) {
            const Deadline deadline = deadline_in(timeout.value_or(5.0));
            self.close(*deadline - std::chrono::steady_clock::now());
          },
          nb::arg("timeout") = nb::none(),
          "Ends every connection and transfer; what is under way has timeout seconds (default 5) to\n"
          "finish, then it is cancelled. May be called again. The calls of other threads end as cancelled.")
      .def_prop_ro("closed", &PyEndpoint::closed, "True after close().")
      .def("stats", &stats_of, nb::arg("conn_id") = nb::none(),
           "Counters of the endpoint, or of one connection, as a dict.")
      .def(
          "metrics",
          [](const PyEndpoint& self) {
            const auto state = self.state_or_raise();
            Released released;
            return openmetrics(state->engine);
          },
          "The counters of the endpoint and of each connection as OpenMetrics text, for Prometheus.")
      .def("transports", &transports_of,
           "Every transport of this build: name -> why it cannot be used here ('': it can).")
      .def(
          "last_error", [](const PyEndpoint&) { return last_error().message; },
          "Why this thread's latest call answered False: one sentence.");
}

}  // namespace p2p::python
