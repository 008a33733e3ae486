// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "connection_table.h"
#include "convert/errors.h"
#include "convert/identity.h"
#include "gil.h"
#include "memory_table.h"
#include "p2p/endpoint.h"
#include "p2p/local_listing.h"
#include "transfers.h"

namespace p2p::python {

/// What an open endpoint consists of. Calls hold it, so that closing never takes it away beneath them.
struct State {
  explicit State(Endpoint made) : engine(std::move(made)) {}

  Endpoint engine;
  std::chrono::milliseconds connect_timeout{};
  std::string socket_dir;
  std::int32_t gpu = 0;
  bool gpu_from_memory = false;  ///< Endpoint(): the first registered GPU memory decides
  std::atomic<bool> closing{false};
  const std::uint64_t generation = fork_generation();
  std::mutex memo_mutex;
  std::unordered_map<std::string, std::uint64_t> by_metadata;
  std::unordered_map<std::int64_t, std::uint64_t> by_rank;
  LocalListing listing;
  TransferTable transfers;
  ConnectionTable connections;
  MemoryTable memory;

  /// Endpoint() takes its GPU from the first GPU memory it sees. Called with the GIL.
  void adopt_gpu(std::uint64_t mr_id) {
    const MemoryPlace place = memory.place(mr_id);
    if (!gpu_from_memory || place.kind != MemoryKind::kCuda) return;
    gpu_from_memory = false;
    gpu = place.device;
  }

  Identity identity(Purpose purpose = Purpose::kConnect) const {
    return {.address = engine.address(), .port = engine.port(), .gpu = gpu, .purpose = purpose};
  }
};

/// Results as the stub says them.
template <class... T>
using Tuple = nanobind::typed<nanobind::tuple, T...>;
using OkAndId = Tuple<bool, std::uint64_t>;
using OkAndBytes = Tuple<bool, nanobind::bytes>;
using OkAndBlobs = Tuple<bool, nanobind::typed<nanobind::list, nanobind::bytes>>;

inline constexpr std::uint64_t kNoConnection = ~std::uint64_t{0};
inline constexpr std::uint64_t kNoTransfer = 0;

/// `uccl.p2p.Endpoint` as C++ sees it. Every method is called with the GIL.
class PyEndpoint {
 public:
  PyEndpoint(std::optional<std::int32_t> gpu, const nanobind::kwargs& options);
  ~PyEndpoint();
  PyEndpoint(const PyEndpoint&) = delete;
  PyEndpoint& operator=(const PyEndpoint&) = delete;

  /// Fails for a closed endpoint and in a child of the process that made it. Does not return in the threads
  /// that the interpreter leaves behind when it ends.
  Result<std::shared_ptr<State>> state() const;
  std::shared_ptr<State> state_or_raise() const { return value_or_raise(state()); }

  /// Ends transfers and connections; what is under way has until `timeout`. Never fails, may be repeated.
  void close(std::chrono::nanoseconds timeout);
  bool closed() const { return state_ == nullptr; }

  /// For the interpreter's end: closes every endpoint and waits until no call is under way, bounded.
  static void close_all();

 private:
  static void close_together();

  std::shared_ptr<State> state_;
};

/// The connection of an id; kInvalidArgument with the sentence that callers know.
Result<std::shared_ptr<const Link>> find_link(const State& state, std::uint64_t conn_id);

/// Starts a transfer without the GIL (`post` gives it) and waits for it. For calls that answer a bool.
template <class Post>
Status run(const State& state, Post&& post) {
  Transfer transfer;
  {
    Released released;
    transfer = post();
    (void)transfer.wait(kSlice);
  }
  if (transfer.done()) return transfer.status();
  return wait_done(transfer, std::nullopt, state.closing, OnInterrupt::kCancel);
}

/// Starts a transfer without the GIL by `post(id)`; what fails at once is told at once.
template <class Post>
OkAndId start(State& state, TransferTable::Kind kind, Post&& post) {
  const std::uint64_t id = state.transfers.next_id();
  Transfer transfer;
  {
    Released released;
    transfer = post(id);
  }
  if (transfer.done() && !succeeded(transfer.status())) return nanobind::make_tuple(false, kNoTransfer);
  state.transfers.add(id, std::move(transfer), kind);
  return nanobind::make_tuple(true, id);
}

inline OkAndId not_started(const Error& error) {
  set_last_error(error);
  return nanobind::make_tuple(false, kNoTransfer);
}

using PyClass = nanobind::class_<PyEndpoint>;
void bind_life(PyClass& endpoint);
void bind_connections(PyClass& endpoint);
void bind_memory(nanobind::module_& module, PyClass& endpoint);
void bind_advertise(PyClass& endpoint);
void bind_calls(PyClass& endpoint);
void bind_descriptors(nanobind::module_& module, PyClass& endpoint);
void bind_transfers(nanobind::module_& module, PyClass& endpoint);
void bind_weights(nanobind::module_& module);

}  // namespace p2p::python
