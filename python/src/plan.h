// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "convert/blobs.h"
#include "convert/sequences.h"
#include "convert/streams.h"
#include "convert/strides.h"
#include "convert/tensors.h"
#include "state.h"

namespace p2p::python {

enum class Verb { kWrite, kRead, kSend, kReceive };

/// The memory here that a call names: in regions, or by address alone.
struct Local {
  Recycled<LocalSpan> spans;
  bool by_address = false;
  std::optional<LocalSpan> around{};  ///< of memory with gaps by address: what is registered for all of it
  std::optional<Strides> strides{};   ///< how the bytes of the only span lie, if not side by side
  std::optional<Strides> theirs{};    ///< how they lie at the peer, likewise

  /// With that; null: side by side.
  Local meeting(const Strides* strides_there) && {
    if (strides_there != nullptr) theirs = *strides_there;
    return std::move(*this);
  }
};
Local in_region(std::uint64_t mr_id, std::uint64_t address, const Amount& amount);
Local at_address(std::uint64_t address, const Amount& amount);

/// A tensor, in the order of its indices: its runs, or strided where two levels hold it and `verb` takes
/// that.
Local in_region(Verb verb, std::uint64_t mr_id, const Tensor& tensor);
Local at_address(Verb verb, const Tensor& tensor);

/// Lists of one length, else they raise.
Local in_regions(const Numbers& ids, const Numbers& addresses, const Numbers& sizes,
                 std::optional<std::size_t> num_iovs);
Local at_addresses(const Numbers& addresses, const Numbers& sizes);

/// What accompanies a call.
struct How {
  Stream stream{};
  Priority priority = Priority::kNormal;
  std::uint64_t rate = 0;  ///< bytes a second; 0: no bound
  bool verify = false;
};

/// Of "high", "normal" or "low"; ValueError for anything else.
Priority priority_of(std::string_view name);

/// A call that moves bytes, checked as far as it can be before the engine sees it.
struct Plan {
  Verb verb{};
  std::shared_ptr<State> state;
  std::shared_ptr<const Link> link;
  Recycled<LocalSpan> local;
  Recycled<RemoteSpan> remote;                      ///< none of two-sided calls
  std::optional<Strides> strides{};                 ///< of the only span here
  std::optional<Strides> theirs{};                  ///< of the only span there
  std::vector<std::shared_ptr<MemoryRegion>> held;  ///< of memory named by address, until it is posted

  /// `id`: what traces call it.
  Transfer post(const How& how, std::uint64_t id = 0) const;
};

/// One without memory; kNotFound for an unknown connection.
Result<Plan> open_plan(const PyEndpoint& self, Verb verb, std::uint64_t conn_id);

/// Gives it its memory. What is wrong with that of two-sided calls is told now, not when the peer's half has
/// come.
Result<Plan> with_memory(Plan plan, Local local);

inline Result<Plan> plan_message(const PyEndpoint& self, Verb verb, std::uint64_t conn_id, Local local) {
  return open_plan(self, verb, conn_id).and_then([&](Plan plan) {
    return with_memory(std::move(plan), std::move(local));
  });
}

/// The peer's memory where it is strided, in what the blob describes.
Status import_strided(const Connection& connection, BlobKind kind, const Blob& blob, const Local& local,
                      Recycled<RemoteSpan>& into);

/// Of a one-sided call: a blob for each span, or one for all of them. Raises for what are no blobs.
template <class List>
Result<Plan> plan_access(const PyEndpoint& self, Verb verb, std::uint64_t conn_id, Local local, BlobKind kind,
                         const List& blobs) {
  raise_unless(same_length({count_of(blobs, *local.spans)}, (*local.spans).size()).map([](std::size_t) {}));
  Result<Plan> plan = open_plan(self, verb, conn_id);
  if (!plan) return plan;
  const Connection& connection = plan->link->connection;
  Status known;
  if constexpr (std::is_same_v<List, Blob>) {
    known = local.theirs ? import_strided(connection, kind, blobs, local, plan->remote)
                         : import_blobs(connection, kind, blobs, *local.spans, plan->remote);
  } else {
    known = import_blobs(connection, kind, blobs, *local.spans, plan->remote);
  }
  if (!known) return tl::unexpected(std::move(known.error()));
  return with_memory(std::move(*plan), std::move(local));
}

/// Carries a plan out and waits: the answer of the calls that give a bool.
bool finish(Result<Plan> plan, const How& how);

/// Starts a plan: the answer of the calls that give (ok, transfer_id).
OkAndId begin(Result<Plan> plan, const How& how);

inline constexpr const char* kHowText =
    "\n\nstream: a CUDA stream (torch's, or its handle) whose work so far is to be done before the memory "
    "here\nis touched; the call does not wait for it. None: the memory is ready now."
    "\n\npriority: 'high', 'normal' or 'low', which of the connection's transfers goes first; ValueError for "
    "others. rate: bytes a\nsecond at which it goes at most; 0: as fast as it can."
    "\n\nverify: True to have the bytes compared once they have arrived, by digests that either side "
    "computes of its own\n"
    "memory. It fails, and the error names the range, if they differ; memory must not be written meanwhile.";

}  // namespace p2p::python
