// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <unordered_map>
#include <vector>

#include "convert/tensors.h"
#include "plan.h"

// What lets a peer reach memory here: 64 bytes of a region, 88 of memory that is named by address alone.
// Callers of the older forms name a connection first; a description does not depend on one.

namespace p2p::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

template <class T>
nb::bytes to_bytes(const T& value) {
  return nb::bytes(reinterpret_cast<const char*>(&value), sizeof value);
}

Result<nb::list> describe_regions(State& state, std::span<const LocalSpan> spans) {
  nb::list blobs;
  for (const LocalSpan& span : spans) {
    const auto descriptor = state.memory.describe(static_cast<std::uint64_t>(span.region),
                                                  reinterpret_cast<std::uint64_t>(span.data), span.size);
    if (!descriptor) return tl::unexpected(descriptor.error());
    blobs.append(to_bytes(descriptor->serialize()));
  }
  return blobs;
}

/// Their regions may yet have to be made.
Result<nb::list> describe_addresses(const PyEndpoint& self, Local local, bool read_only) {
  const auto state = self.state_or_raise();
  const std::span<LocalSpan> spans = *local.spans;
  const auto held = state->engine.cover(spans, read_only);
  if (!held) return tl::unexpected(held.error());
  std::unordered_map<std::uint64_t, const MemoryRegion*> regions;
  for (const auto& region : *held) regions.emplace(static_cast<std::uint64_t>(region->id()), region.get());
  nb::list blobs;
  for (const LocalSpan& span : spans) {
    const auto descriptor = describe(*regions.at(static_cast<std::uint64_t>(span.region)),
                                     reinterpret_cast<std::uint64_t>(span.data), span.size);
    if (!descriptor) return tl::unexpected(descriptor.error());
    blobs.append(to_bytes(Ticket{.descriptor = descriptor->serialize(), .size = span.size}));
  }
  return blobs;
}

Result<nb::list> describe(const PyEndpoint& self, const Local& local) {
  return describe_regions(*self.state_or_raise(), *local.spans);
}

OkAndBlobs all_of(const Result<nb::list>& blobs) {
  if (blobs) return nb::make_tuple(true, *blobs);
  set_last_error(blobs.error());
  return nb::make_tuple(false, nb::list());
}

OkAndBytes one_of(const Result<nb::list>& blobs) {
  if (blobs) return nb::make_tuple(true, (*blobs)[0]);
  set_last_error(blobs.error());
  return nb::make_tuple(false, nb::bytes("", 0));
}

/// Into buffers of the caller's.
bool fill(const Result<nb::list>& blobs, const std::vector<const Buffer*>& outs) {
  if (!blobs) return succeeded(tl::unexpected(blobs.error()));
  for (std::size_t i = 0; i < outs.size(); ++i) {
    const nb::bytes blob((*blobs)[i]);
    const Status filled = outs[i]->fill({reinterpret_cast<const std::byte*>(blob.c_str()), blob.size()});
    if (!filled) return succeeded(filled);
  }
  return true;
}

constexpr const char* kOne =
    "Describes a range of a registered region for a peer's read and write: (ok, 64 bytes).\n\n"
    "Valid until dereg(); may be narrowed by editing the address (u64 at 0) and the size (u32 at 8). The\n"
    "conn_id of the older form is accepted and not used. (False, b'') for an unknown region or range.";
constexpr const char* kMany = "advertise() for lists: (ok, list of 64-byte blobs).";
constexpr const char* kTensor = "The same for all of a contiguous tensor, array or buffer.";

void bind_regions(PyClass& endpoint) {
  const auto one = [](const PyEndpoint& self, std::uint64_t mr_id, std::uint64_t ptr, std::size_t size) {
    return one_of(describe(self, in_region(mr_id, ptr, {size})));
  };
  const auto one_on = [one](const PyEndpoint& self, std::uint64_t, std::uint64_t mr_id, std::uint64_t ptr,
                            std::size_t size) { return one(self, mr_id, ptr, size); };
  const auto many = [](const PyEndpoint& self, const Numbers& ids, const Numbers& ptrs, const Numbers& sizes,
                       std::optional<std::size_t> num_iovs) {
    return all_of(describe(self, in_regions(ids, ptrs, sizes, num_iovs)));
  };
  const auto many_on = [many](const PyEndpoint& self, std::uint64_t, const Numbers& ids, const Numbers& ptrs,
                              const Numbers& sizes, std::optional<std::size_t> num_iovs) {
    return many(self, ids, ptrs, sizes, num_iovs);
  };
  const auto tensor = [one](const PyEndpoint& self, std::uint64_t mr_id, nb::handle object) {
    const Tensor all = tensor_of(object, "advertise", Use::kDescribed);
    return one(self, mr_id, all.address, all.bytes);
  };
  endpoint.def("advertise", one_on, "conn_id"_a, "mr_id"_a, "ptr"_a, "size"_a, kOne)
      .def("advertise", one_on, "conn_id"_a, "mr_id"_a, "addr"_a, "len"_a)
      .def("advertise", one, "mr_id"_a, "ptr"_a, "size"_a)
      .def("advertise", tensor, "mr_id"_a, "tensor"_a, kTensor)
      .def("advertisev", many_on, "conn_id"_a, "mr_id_v"_a, "ptr_v"_a, "size_v"_a, "num_iovs"_a = nb::none(),
           kMany)
      .def("advertisev", many_on, "conn_id"_a, "mr_id_list"_a, "addr_list"_a, "len_list"_a,
           "num_iovs"_a = nb::none())
      .def("advertisev", many, "mr_id_v"_a, "ptr_v"_a, "size_v"_a, "num_iovs"_a = nb::none(), kMany);
}

void bind_into_buffers(PyClass& endpoint) {
  const auto one = [](const PyEndpoint& self, std::uint64_t, std::uint64_t mr_id, std::uint64_t addr,
                      std::size_t len, const Buffer& out) {
    return fill(describe(self, in_region(mr_id, addr, {len})), {&out});
  };
  const auto many = [](const PyEndpoint& self, std::uint64_t, const Numbers& ids, const Numbers& addresses,
                       const Numbers& sizes, const std::vector<Buffer>& outs,
                       std::optional<std::size_t> num_iovs) {
    const Local local = in_regions(ids, addresses, sizes, num_iovs);
    raise_unless(same_length({outs.size()}, (*local.spans).size()).map([](std::size_t) {}));
    std::vector<const Buffer*> into;
    for (const Buffer& out : outs) into.push_back(&out);
    return fill(describe(self, local), into);
  };
  endpoint
      .def("advertise", one, "conn_id"_a, "mr_id"_a, "addr"_a, "len"_a, "out_buf"_a,
           "The same 64 bytes into the beginning of a writable buffer (bytearray, array): True, or False "
           "with\nlast_error().")
      .def("advertisev", many, "conn_id"_a, "mr_id_list"_a, "addr_list"_a, "len_list"_a, "out_buf_list"_a,
           "num_iovs"_a = nb::none(), "advertise() into a list of writable buffers.");
}

void bind_addresses(PyClass& endpoint) {
  const auto one = [](const PyEndpoint& self, std::uint64_t, std::uint64_t ptr, std::size_t size,
                      bool read_only) {
    return one_of(describe_addresses(self, at_address(ptr, {size}), read_only));
  };
  const auto tensor = [one](const PyEndpoint& self, std::uint64_t conn_id, nb::handle object,
                            bool read_only) {
    const Tensor all = tensor_of(object, "advertise_ipc", Use::kDescribed);
    return one(self, conn_id, all.address, all.bytes, read_only || !all.writable);
  };
  const auto many = [](const PyEndpoint& self, std::uint64_t, const Numbers& ptrs, const Numbers& sizes,
                       bool read_only) {
    return all_of(describe_addresses(self, at_addresses(ptrs, sizes), read_only));
  };
  endpoint
      .def("advertise_ipc", one, "conn_id"_a, "ptr"_a, "size"_a, nb::kw_only(), "read_only"_a = false,
           "Describes unregistered memory for a peer's write_ipc and read_ipc: (ok, 88 bytes).\n\n"
           "conn_id is not used. read_only: peers may not write to it. The memory stays reachable for who "
           "has\nthe blob until the endpoint closes, or 4096 other regions were used since.")
      .def("advertise_ipc", tensor, "conn_id"_a, "tensor"_a, nb::kw_only(), "read_only"_a = false,
           "The same for all of a contiguous tensor, array or buffer. Peers may not write to memory that is\n"
           "read-only here.")
      .def("advertisev_ipc", many, "conn_id"_a, "ptr_v"_a, "size_v"_a, nb::kw_only(), "read_only"_a = false,
           "advertise_ipc() for lists: (ok, list of blobs).");
}

}  // namespace

void bind_advertise(PyClass& endpoint) {
  bind_regions(endpoint);
  bind_into_buffers(endpoint);
  bind_addresses(endpoint);
}

}  // namespace p2p::python
