// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "one_sided.h"
#include "sequences.h"
#include "spans.h"

// The calls that name memory by address alone. Regions are made on first use and kept
// (MemoryTable::implicit); everything else is the ordinary one-sided path, which takes the fastest route on
// one host by itself.

namespace p2p::python {
namespace nb = nanobind;
namespace {

/// What advertise_ipc gives: the region's descriptor, its length once more, and a mark. Little endian.
struct Ticket {
  std::array<std::byte, RegionDescriptor::kBytes> descriptor;
  std::uint64_t size;
  std::uint64_t flags;  ///< zero
  std::array<char, 8> mark;
};
constexpr std::size_t kTicketBytes = 88;
static_assert(sizeof(Ticket) == kTicketBytes);
constexpr std::array<char, 8> kMark{'u', 'c', 'c', 'l', 'i', 'p', 'c', '1'};

/// The blobs of spans whose regions may yet have to be made.
Result<std::vector<Ticket>> make_tickets(State& state, std::span<LocalSpan> spans) {
  const auto held = state.memory.implicit(state.engine, spans);
  if (!held) return tl::unexpected(held.error());
  std::vector<Ticket> tickets;
  tickets.reserve(spans.size());
  for (const LocalSpan& span : spans) {
    const Result<RegionDescriptor> descriptor = state.memory.describe(
        static_cast<std::uint64_t>(span.region), reinterpret_cast<std::uint64_t>(span.data), span.size);
    if (!descriptor) return tl::unexpected(descriptor.error());
    tickets.push_back({.descriptor = descriptor->serialize(), .size = span.size, .flags = 0, .mark = kMark});
  }
  return tickets;
}

nb::bytes to_bytes(const Ticket& ticket) {
  return nb::bytes(reinterpret_cast<const char*>(&ticket), sizeof ticket);
}

/// The descriptor within an info blob; raises for anything advertise_ipc did not make.
std::span<const std::byte> descriptor_of(std::span<const std::byte> info, std::size_t size) {
  if (size != kTicketBytes) {
    raise(Error{ErrorCode::kInvalidArgument, "info must be exactly " + std::to_string(kTicketBytes) +
                                                 " bytes (of advertise_ipc), not " + std::to_string(size)});
  }
  Ticket ticket{};
  std::memcpy(&ticket, info.data(), sizeof ticket);
  if (ticket.mark != kMark || ticket.flags != 0) {
    raise(Error{ErrorCode::kInvalidArgument, "info is not what advertise_ipc gave"});
  }
  return info.first(RegionDescriptor::kBytes);
}

OkAndBytes advertise(const PyEndpoint& self, std::uint64_t, std::uint64_t ptr, std::size_t size) {
  LocalSpan span = local_span(0, ptr, size);
  const auto tickets = make_tickets(*self.state_or_raise(), {&span, 1});
  if (tickets) return nb::make_tuple(true, to_bytes(tickets->front()));
  set_last_error(tickets.error());
  return nb::make_tuple(false, nb::bytes("", 0));
}

OkAndBlobs advertisev(const PyEndpoint& self, std::uint64_t, const Numbers& ptrs, const Numbers& sizes) {
  const auto state = self.state_or_raise();
  const std::size_t count = value_or_raise(same_length({ptrs.size(), sizes.size()}, std::nullopt));
  std::vector<LocalSpan> spans;
  spans.reserve(count);
  for (std::size_t i = 0; i < count; ++i) spans.push_back(local_span(0, ptrs[i], sizes[i]));
  const auto tickets = make_tickets(*state, spans);
  nb::list blobs;
  if (!tickets) {
    set_last_error(tickets.error());
    return nb::make_tuple(false, blobs);
  }
  for (const Ticket& ticket : *tickets) blobs.append(to_bytes(ticket));
  return nb::make_tuple(true, blobs);
}

/// Names the regions of the plan's local memory.
Status hold_regions(Plan& plan) {
  auto held = plan.state->memory.implicit(plan.state->engine, *plan.local);
  if (!held) return tl::unexpected(held.error());
  plan.held = std::move(*held);
  return {};
}

Status add_pair(Plan& plan, const LocalSpan& local, std::span<const std::byte> descriptor,
                Importer& importer) {
  const Result<RemoteSpan> remote = importer(descriptor, local.size);
  if (!remote) return tl::unexpected(remote.error());
  plan.local->push_back(local);
  plan.remote->push_back(*remote);
  return {};
}

Result<Plan> plan_one(const PyEndpoint& self, std::uint64_t conn_id, const LocalSpan& local,
                      const Blob& info) {
  const auto descriptor = descriptor_of(info.bytes(), info.size());
  Result<Plan> plan = open_plan(self, conn_id);
  if (!plan) return plan;
  Importer importer(plan->link->connection);
  Status added = add_pair(*plan, local, descriptor, importer);
  if (added) added = hold_regions(*plan);
  if (!added) return tl::unexpected(added.error());
  return plan;
}

Result<Plan> plan_many(const PyEndpoint& self, std::uint64_t conn_id, const Numbers& ptrs,
                       const Numbers& sizes, const Blobs& infos) {
  const std::size_t count =
      value_or_raise(same_length({ptrs.size(), sizes.size(), infos.size()}, std::nullopt));
  for (std::size_t i = 0; i < count; ++i) (void)descriptor_of(infos[i], infos[i].size());
  Result<Plan> plan = open_plan(self, conn_id);
  if (!plan) return plan;
  Importer importer(plan->link->connection);
  Status added;
  for (std::size_t i = 0; added && i < count; ++i) {
    const auto descriptor = infos[i].first(RegionDescriptor::kBytes);
    added = add_pair(*plan, local_span(0, ptrs[i], sizes[i]), descriptor, importer);
  }
  if (added) added = hold_regions(*plan);
  if (!added) return tl::unexpected(added.error());
  return plan;
}

void bind_operation(PyClass& endpoint, Operation operation, const std::string& name,
                    const std::string& verb) {
  using namespace nb::literals;
  const std::string sync = verb + " Returns True when done, else False with last_error().";
  const std::string async = verb + " Returns (ok, transfer_id) at once.";
  const std::string rest =
      "\n\nNo registration is needed. info is what the peer's advertise_ipc() gave (88 bytes; RuntimeError\n"
      "for anything else).";
  endpoint
      .def((name + "_ipc").c_str(),
           [operation](const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t ptr, std::size_t size,
                       const Blob& info) {
             return finish(operation, plan_one(self, conn_id, local_span(0, ptr, size), info));
           },
           "conn_id"_a, "ptr"_a, "size"_a, "info"_a, (sync + rest).c_str())
      .def((name + "_ipc_async").c_str(),
           [operation](const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t ptr, std::size_t size,
                       const Blob& info) {
             return begin(operation, plan_one(self, conn_id, local_span(0, ptr, size), info));
           },
           "conn_id"_a, "ptr"_a, "size"_a, "info"_a, (async + rest).c_str())
      .def((name + "v_ipc").c_str(),
           [operation](const PyEndpoint& self, std::uint64_t conn_id, const Numbers& ptrs,
                       const Numbers& sizes, const Blobs& infos) {
             return finish(operation, plan_many(self, conn_id, ptrs, sizes, infos));
           },
           "conn_id"_a, "ptr_v"_a, "size_v"_a, "info_v"_a, (sync + rest).c_str())
      .def((name + "v_ipc_async").c_str(),
           [operation](const PyEndpoint& self, std::uint64_t conn_id, const Numbers& ptrs,
                       const Numbers& sizes, const Blobs& infos) {
             return begin(operation, plan_many(self, conn_id, ptrs, sizes, infos));
           },
           "conn_id"_a, "ptr_v"_a, "size_v"_a, "info_v"_a, (async + rest).c_str());
}

}  // namespace

void bind_ipc(PyClass& endpoint) {
  using namespace nb::literals;
  endpoint
      .def("advertise_ipc", &advertise, "conn_id"_a, "ptr"_a, "size"_a,
           "Describes unregistered memory for a peer's write_ipc and read_ipc: (ok, 88 bytes).\n\n"
           "conn_id is not used. The memory stays reachable for who has the blob until the endpoint closes,\n"
           "or 4096 other regions were used since.")
      .def("advertisev_ipc", &advertisev, "conn_id"_a, "ptr_v"_a, "size_v"_a,
           "advertise_ipc() for lists: (ok, list of blobs).");
  bind_operation(endpoint, Operation::kWrite, "write", "Writes local memory into the peer's.");
  bind_operation(endpoint, Operation::kRead, "read", "Reads the peer's memory into local memory.");
}

}  // namespace p2p::python
