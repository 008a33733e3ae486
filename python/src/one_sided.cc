// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "one_sided.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <utility>
#include <vector>

#include "sequences.h"
#include "spans.h"

namespace p2p::python {
namespace nb = nanobind;
namespace {

void check_blob(std::size_t bytes) {
  if (bytes == RegionDescriptor::kBytes) return;
  raise(Error{ErrorCode::kInvalidArgument,
              "meta must be exactly 64 bytes (serialized FifoItem), not " + std::to_string(bytes)});
}

Result<Plan> plan_one(const PyEndpoint& self, std::uint64_t conn_id, LocalSpan local, const Blob& meta) {
  check_blob(meta.size());
  Result<Plan> plan = open_plan(self, conn_id);
  if (!plan) return plan;
  const Result<RemoteSpan> remote = Importer(plan->link->connection)(meta.bytes(), local.size);
  if (!remote) return tl::unexpected(remote.error());
  plan->local->push_back(local);
  plan->remote->push_back(*remote);
  return plan;
}

struct Lists {
  const Numbers& ids;
  const Numbers& addresses;
  const Numbers& sizes;
  const Blobs& blobs;
};

Result<Plan> plan_many(const PyEndpoint& self, std::uint64_t conn_id, const Lists& lists,
                       std::optional<std::size_t> num_iovs) {
  auto local = value_or_raise(local_spans(lists.ids, lists.addresses, lists.sizes, num_iovs));
  raise_unless(same_length({lists.blobs.size()}, local->size()).map([](std::size_t) {}));
  for (std::size_t i = 0; i < lists.blobs.size(); ++i) check_blob(lists.blobs[i].size());
  Result<Plan> plan = open_plan(self, conn_id);
  if (!plan) return plan;
  auto remote = remote_spans(plan->link->connection, lists.blobs, lists.sizes);
  if (!remote) return tl::unexpected(remote.error());
  plan->local = std::move(local);
  plan->remote = std::move(*remote);
  return plan;
}

/// Of a tensor that need not be registered.
Result<Plan> plan_unregistered(const PyEndpoint& self, std::uint64_t conn_id, const Tensor& tensor,
                               const Blob& meta) {
  Result<Plan> plan = plan_one(self, conn_id, local_span(0, tensor.address, tensor.bytes), meta);
  if (!plan) return plan;
  if (const Status held = hold_regions(*plan); !held) return tl::unexpected(held.error());
  return plan;
}

/// What differs between write and read: names and sentences.
struct Names {
  const char* one;
  const char* one_async;
  const char* many;
  const char* many_async;
  const char* pointer;   ///< the older spelling of ptr
  const char* pointers;  ///< and of ptr_v
  const char* verb;
};

/// The calls for one piece. `run` is `finish` or `begin`.
template <class Run>
void bind_one(PyClass& endpoint, Operation operation, Run run, const char* name, const char* pointer,
              const std::string& text) {
  using namespace nb::literals;
  const auto one = [=](const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t mr_id, std::uint64_t ptr,
                       std::size_t size, const Blob& meta, const nb::object& stream) {
    const Stream behind(stream);
    return run(operation, plan_one(self, conn_id, local_span(mr_id, ptr, size), meta), behind);
  };
  const auto of_tensor = [=](const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t mr_id,
                             nb::handle object, const Blob& meta, const nb::object& stream) {
    const Tensor tensor = tensor_for(operation, object);
    const Stream behind(stream, tensor);
    const LocalSpan span = local_span(mr_id, tensor.address, tensor.bytes);
    return run(operation, plan_one(self, conn_id, span, meta), behind);
  };
  const auto unregistered = [=](const PyEndpoint& self, std::uint64_t conn_id, nb::handle object,
                                const Blob& meta, const nb::object& stream) {
    const Tensor tensor = tensor_for(operation, object);
    const Stream behind(stream, tensor);
    return run(operation, plan_unregistered(self, conn_id, tensor, meta), behind);
  };
  const std::string tensors =
      "The same for all of a contiguous tensor, array or buffer. Of one on a GPU, stream=None is torch's "
      "current stream\nof that GPU. ";
  endpoint
      .def(name, one, "conn_id"_a, "mr_id"_a, "ptr"_a, "size"_a, "meta"_a, nb::kw_only(),
           "stream"_a = nb::none(), (text + kStreamText + ".").c_str())
      .def(name, one, "conn_id"_a, "mr_id"_a, nb::arg(pointer), "size"_a, "slot_item"_a, nb::kw_only(),
           "stream"_a = nb::none())
      .def(name, of_tensor, "conn_id"_a, "mr_id"_a, "tensor"_a, "meta"_a, nb::kw_only(),
           "stream"_a = nb::none(), (tensors + "TypeError or ValueError for what is none.").c_str())
      .def(name, unregistered, "conn_id"_a, "tensor"_a, "meta"_a, nb::kw_only(), "stream"_a = nb::none(),
           (tensors + "It need not be registered: see " + name + "_ipc.").c_str());
}

/// The calls for lists.
template <class Run>
void bind_many(PyClass& endpoint, Operation operation, Run run, const char* name, const char* pointers,
               const std::string& text) {
  using namespace nb::literals;
  const auto many = [=](const PyEndpoint& self, std::uint64_t conn_id, const Numbers& ids,
                        const Numbers& ptrs, const Numbers& sizes, const Blobs& blobs,
                        std::optional<std::size_t> num_iovs, const nb::object& stream) {
    const Stream behind(stream);
    return run(operation, plan_many(self, conn_id, {ids, ptrs, sizes, blobs}, num_iovs), behind);
  };
  const std::string lists =
      "\n\nLists or NumPy arrays (64-bit integers are read in place; meta as bytes or a "
      "uint8 array (n, 64)).\nRaises RuntimeError unless all have num_iovs entries.";
  endpoint
      .def(name, many, "conn_id"_a, "mr_id_v"_a, "ptr_v"_a, "size_v"_a, "meta_blob_v"_a,
           "num_iovs"_a = nb::none(), nb::kw_only(), "stream"_a = nb::none(),
           (text + lists + kStreamText + ".").c_str())
      .def(name, many, "conn_id"_a, "mr_id_list"_a, nb::arg(pointers), "size_list"_a, "slot_item_list"_a,
           "num_iovs"_a = nb::none(), nb::kw_only(), "stream"_a = nb::none());
}

void bind_operation(PyClass& endpoint, Operation operation, const Names& names) {
  const std::string what = std::string(names.verb) +
                           "\n\nptr lies in the local region mr_id; meta are the 64 bytes that the peer's "
                           "advertise() gave.\nThe peer calls nothing. ";
  const std::string sync = what + "Returns True when the bytes are there, else False with last_error().";
  const std::string async = what + "Returns (ok, transfer_id) at once.";
  bind_one(endpoint, operation, finish, names.one, names.pointer, sync);
  bind_one(endpoint, operation, begin, names.one_async, names.pointer, async);
  bind_many(endpoint, operation, finish, names.many, names.pointers, sync);
  bind_many(endpoint, operation, begin, names.many_async, names.pointers, async);
}

}  // namespace

void bind_one_sided(PyClass& endpoint) {
  bind_operation(endpoint, Operation::kWrite,
                 {.one = "write",
                  .one_async = "write_async",
                  .many = "writev",
                  .many_async = "writev_async",
                  .pointer = "src",
                  .pointers = "src_list",
                  .verb = "Writes local memory into the peer's."});
  bind_operation(endpoint, Operation::kRead,
                 {.one = "read",
                  .one_async = "read_async",
                  .many = "readv",
                  .many_async = "readv_async",
                  .pointer = "dst",
                  .pointers = "dst_list",
                  .verb = "Reads the peer's memory into local memory."});
}

}  // namespace p2p::python
