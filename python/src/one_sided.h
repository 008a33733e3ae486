// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>
#include <vector>

#include "spans.h"
#include "state.h"
#include "streams.h"

namespace p2p::python {

enum class Operation { kWrite, kRead };

/// All that a one-sided call needs, checked as far as it can be before the engine sees it.
struct Plan {
  std::shared_ptr<State> state;
  std::shared_ptr<const Link> link;
  Recycled<LocalSpan> local;
  Recycled<RemoteSpan> remote;
  std::vector<MemoryTable::Region> held;  ///< by `*_ipc` calls, until it is posted

  /// `stream`: whose work so far the transfer waits for. `id`: what traces call it.
  Transfer post(Operation operation, void* stream, std::uint64_t id = 0) const {
    const Connection& connection = link->connection;
    const PostOptions options{.cuda_stream = stream, .trace_id = id};
    return operation == Operation::kWrite ? connection.write(*local, *remote, options)
                                          : connection.read(*local, *remote, options);
  }
};

/// An empty plan for a connection; kNotFound for an unknown one.
inline Result<Plan> open_plan(const PyEndpoint& self, std::uint64_t conn_id) {
  Plan plan;
  plan.state = self.state_or_raise();
  const auto link = find_link(*plan.state, conn_id);
  if (!link) return tl::unexpected(link.error());
  plan.link = *link;
  return plan;
}

/// Names the regions of the plan's local memory, for calls that name it by address alone.
inline Status hold_regions(Plan& plan) {
  auto held = plan.state->memory.implicit(plan.state->engine, *plan.local);
  if (!held) return tl::unexpected(held.error());
  plan.held = std::move(*held);
  return {};
}

/// The tensor of a call, as what the operation does with it needs it.
inline Tensor tensor_for(Operation operation, nanobind::handle object) {
  return operation == Operation::kRead ? writable_tensor_of(object, "read") : tensor_of(object, "write");
}

inline constexpr const char* kStreamText =
    "\n\nstream: a CUDA stream (torch's, or its handle) whose work so far is to be done before the memory "
    "here\nis touched; the call does not wait for it. None: the memory is ready now";

/// Carries a plan out and waits: the answer of the calls that give a bool.
inline bool finish(Operation operation, const Result<Plan>& plan, const Stream& stream) {
  if (!plan) return succeeded(tl::unexpected(plan.error()));
  return succeeded(run(*plan->state, [&] { return plan->post(operation, stream.handle()); }));
}

/// Starts a plan: the answer of the calls that give (ok, transfer_id).
inline OkAndId begin(Operation operation, const Result<Plan>& plan, const Stream& stream) {
  if (!plan) return not_started(plan.error());
  return start(*plan->state, TransferTable::Kind::kOneSided,
               [&](std::uint64_t id) { return plan->post(operation, stream.handle(), id); });
}

}  // namespace p2p::python
