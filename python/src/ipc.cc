// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <array>
#include <cstddef>
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
  std::uint64_t flags = 0;
  std::memcpy(&flags, info.data() + offsetof(Ticket, flags), sizeof flags);
  if (flags != 0 || std::memcmp(info.data() + offsetof(Ticket, mark), kMark.data(), kMark.size()) != 0) {
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
  Result<Plan> plan = open_plan(self, conn_id);
  if (!plan) return plan;
  Importer importer(plan->link->connection);
  plan->local->reserve(count);
  plan->remote->reserve(count);
  Status added;
  for (std::size_t i = 0; added && i < count;
       ++i) {  // one walk: of many blobs it is memory that takes the time
    const auto info = infos[i];
    const auto descriptor = descriptor_of(info, info.size());
    added = add_pair(*plan, local_span(0, ptrs[i], sizes[i]), descriptor, importer);
  }
  if (added) added = hold_regions(*plan);
  if (!added) return tl::unexpected(added.error());
  return plan;
}

/// The calls of one name, with `_ipc` and what follows it. `run` is `finish` or `begin`.
template <class Run>
void bind_calls(PyClass& endpoint, Operation operation, Run run, const std::string& name,
                const std::string& suffix, const std::string& text) {
  using namespace nb::literals;
  const std::string rest =
      text +
      "\n\nNo registration is needed. info is what the peer's advertise_ipc() gave (88 bytes; RuntimeError\n"
      "for anything else)." +
      kStreamText + ".";
  endpoint
      .def((name + suffix).c_str(),
           [=](const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t ptr, std::size_t size,
               const Blob& info, const nb::object& stream) {
             const Stream behind(stream);
             return run(operation, plan_one(self, conn_id, local_span(0, ptr, size), info), behind);
           },
           "conn_id"_a, "ptr"_a, "size"_a, "info"_a, nb::kw_only(), "stream"_a = nb::none(), rest.c_str())
      .def((name + suffix).c_str(),
           [=](const PyEndpoint& self, std::uint64_t conn_id, nb::handle object, const Blob& info,
               const nb::object& stream) {
             const Tensor tensor = tensor_for(operation, object);
             const Stream behind(stream, tensor);
             const LocalSpan span = local_span(0, tensor.address, tensor.bytes);
             return run(operation, plan_one(self, conn_id, span, info), behind);
           },
           "conn_id"_a, "tensor"_a, "info"_a, nb::kw_only(), "stream"_a = nb::none(),
           "The same for all of a contiguous tensor, array or buffer. Of one on a GPU, stream=None is "
           "torch's\n"
           "current stream of that GPU.")
      .def((name + "v" + suffix).c_str(),
           [=](const PyEndpoint& self, std::uint64_t conn_id, const Numbers& ptrs, const Numbers& sizes,
               const Blobs& infos, const nb::object& stream) {
             const Stream behind(stream);
             return run(operation, plan_many(self, conn_id, ptrs, sizes, infos), behind);
           },
           "conn_id"_a, "ptr_v"_a, "size_v"_a, "info_v"_a, nb::kw_only(), "stream"_a = nb::none(),
           rest.c_str());
}

void bind_operation(PyClass& endpoint, Operation operation, const std::string& name,
                    const std::string& verb) {
  bind_calls(endpoint, operation, finish, name, "_ipc",
             verb + " Returns True when done, else False with last_error().");
  bind_calls(endpoint, operation, begin, name, "_ipc_async", verb + " Returns (ok, transfer_id) at once.");
}

}  // namespace

void bind_ipc(PyClass& endpoint) {
  using namespace nb::literals;
  endpoint
      .def("advertise_ipc", &advertise, "conn_id"_a, "ptr"_a, "size"_a,
           "Describes unregistered memory for a peer's write_ipc and read_ipc: (ok, 88 bytes).\n\n"
           "conn_id is not used. The memory stays reachable for who has the blob until the endpoint closes,\n"
           "or 4096 other regions were used since.")
      .def(
          "advertise_ipc",
          [](const PyEndpoint& self, std::uint64_t conn_id, nb::handle object) {
            const Tensor tensor = tensor_of(object, "advertise_ipc");
            return advertise(self, conn_id, tensor.address, tensor.bytes);
          },
          "conn_id"_a, "tensor"_a, "The same for all of a contiguous tensor, array or buffer.")
      .def("advertisev_ipc", &advertisev, "conn_id"_a, "ptr_v"_a, "size_v"_a,
           "advertise_ipc() for lists: (ok, list of blobs).");
  bind_operation(endpoint, Operation::kWrite, "write", "Writes local memory into the peer's.");
  bind_operation(endpoint, Operation::kRead, "read", "Reads the peer's memory into local memory.");
}

}  // namespace p2p::python
