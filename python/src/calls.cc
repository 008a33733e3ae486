// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "convert/tensors.h"
#include "plan.h"

// Every call that moves bytes: a verb, of one piece or of lists, at once or asynchronous, of registered
// memory or of memory that is named by address alone (`_ipc`).

namespace p2p::python {
namespace nb = nanobind;
using namespace nb::literals;
namespace {

struct Row {
  Verb verb;
  const char* name;
  const char* does;
  const char* pointer = "";   ///< the older spelling of ptr
  const char* pointers = "";  ///< and of ptr_v
};
constexpr std::array kOneSided{
    Row{Verb::kWrite, "write", "Writes local memory into the peer's.", "src", "src_list"},
    Row{Verb::kRead, "read", "Reads the peer's memory into local memory.", "dst", "dst_list"}};
constexpr std::array kTwoSided{
    Row{Verb::kSend, "send", "Sends size bytes; the n-th send of one side meets the n-th recv of the other."},
    Row{Verb::kReceive, "recv",
        "Receives the next message; size is the most it may have, a longer one fails both sides."}};

/// How a call ends.
struct AtOnce {
  static constexpr const char* kSuffix = "";
  static constexpr const char* kText = "Returns True when done, else False with last_error().";
  static bool carry_out(Result<Plan> plan, const How& how) { return finish(std::move(plan), how); }
};
struct Asynchronous {
  static constexpr const char* kSuffix = "_async";
  static constexpr const char* kText = "Returns (ok, transfer_id) at once.";
  static OkAndId carry_out(Result<Plan> plan, const How& how) { return begin(std::move(plan), how); }
};

constexpr const char* kTensor =
    "The same for all elements of a tensor, array or buffer, in the order of their indices: of one with gaps "
    "or in\nanother order a list of its runs. TypeError or ValueError for what cannot be moved. ";
constexpr const char* kTensorStream = "Of one on a GPU,\nstream=None is torch's current stream of that GPU.";
constexpr const char* kTheirs =
    "\n\nsize or theirs may be Strides: how the bytes lie here from ptr on, and at the peer from the start "
    "of\nwhat it described. theirs=None: side by side.";
constexpr const char* kLists =
    "\n\nLists or NumPy arrays. Raises RuntimeError unless all have num_iovs entries.";

/// Names of a row's calls, with what ends them.
template <class End>
struct Names {
  explicit Names(const Row& row)
      : one(row.name + std::string(End::kSuffix)),
        many(row.name + std::string("v") + End::kSuffix),
        one_ipc(row.name + std::string("_ipc") + End::kSuffix),
        many_ipc(row.name + std::string("v_ipc") + End::kSuffix),
        text(row.does + std::string(" ") + End::kText) {}
  std::string one, many, one_ipc, many_ipc, text;
};

/// A tensor where the verb may use it.
Tensor tensor_for(const Row& row, nb::handle object) {
  const bool written = row.verb == Verb::kRead || row.verb == Verb::kReceive;
  return tensor_of(object, row.name, written ? Use::kTarget : Use::kSource);
}

template <class End>
void bind_registered_access(PyClass& endpoint, const Row& row, const Names<End>& names) {
  const auto one = [&row](const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t mr_id,
                          std::uint64_t ptr, const Amount& size, const Blob& meta, const nb::object& stream,
                          std::string_view priority, std::uint64_t rate, bool verify, const Strides* theirs) {
    const How how{Stream(stream), priority_of(priority), rate, verify};
    return End::carry_out(plan_access(self, row.verb, conn_id, in_region(mr_id, ptr, size).meeting(theirs),
                                      BlobKind::kDescriptor, meta),
                          how);
  };
  const auto tensor = [&row](const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t mr_id,
                             nb::handle object, const Blob& meta, const nb::object& stream,
                             std::string_view priority, std::uint64_t rate, bool verify,
                             const Strides* theirs) {
    const Tensor all = tensor_for(row, object);
    const How how{Stream(stream, all), priority_of(priority), rate, verify};
    return End::carry_out(
        plan_access(self, row.verb, conn_id, in_region(row.verb, mr_id, all).meeting(theirs),
                    BlobKind::kDescriptor, meta),
        how);
  };
  const auto many = [&row](const PyEndpoint& self, std::uint64_t conn_id, const Numbers& ids,
                           const Numbers& ptrs, const Numbers& sizes, const Blobs& blobs,
                           std::optional<std::size_t> num_iovs, const nb::object& stream,
                           std::string_view priority, std::uint64_t rate, bool verify) {
    const How how{Stream(stream), priority_of(priority), rate, verify};
    return End::carry_out(plan_access(self, row.verb, conn_id, in_regions(ids, ptrs, sizes, num_iovs),
                                      BlobKind::kDescriptor, blobs),
                          how);
  };
  const std::string text = names.text +
                           "\n\nptr lies in the local region mr_id; meta are the 64 bytes that the peer's "
                           "advertise() gave.\nThe peer calls nothing.";
  endpoint
      .def(names.one.c_str(), one, "conn_id"_a, "mr_id"_a, "ptr"_a, "size"_a, "meta"_a, nb::kw_only(),
           "stream"_a = nb::none(), "priority"_a = "normal", "rate"_a = 0, "verify"_a = false,
           "theirs"_a = nb::none(), (text + kHowText + kTheirs).c_str())
      .def(names.one.c_str(), one, "conn_id"_a, "mr_id"_a, nb::arg(row.pointer), "size"_a, "slot_item"_a,
           nb::kw_only(), "stream"_a = nb::none(), "priority"_a = "normal", "rate"_a = 0, "verify"_a = false,
           "theirs"_a = nb::none())
      .def(names.one.c_str(), tensor, "conn_id"_a, "mr_id"_a, "tensor"_a, "meta"_a, nb::kw_only(),
           "stream"_a = nb::none(), "priority"_a = "normal", "rate"_a = 0, "verify"_a = false,
           "theirs"_a = nb::none(), (std::string(kTensor) + kTensorStream).c_str())
      .def(names.many.c_str(), many, "conn_id"_a, "mr_id_v"_a, "ptr_v"_a, "size_v"_a, "meta_blob_v"_a,
           "num_iovs"_a = nb::none(), nb::kw_only(), "stream"_a = nb::none(), "priority"_a = "normal",
           "rate"_a = 0, "verify"_a = false,
           (text + kLists + " 64-bit integers are read in place,\nand meta may be a uint8 array (n, 64)." +
            kHowText)
               .c_str())
      .def(names.many.c_str(), many, "conn_id"_a, "mr_id_list"_a, nb::arg(row.pointers), "size_list"_a,
           "slot_item_list"_a, "num_iovs"_a = nb::none(), nb::kw_only(), "stream"_a = nb::none(),
           "priority"_a = "normal", "rate"_a = 0, "verify"_a = false);
}

template <class End>
void bind_access_by_address(PyClass& endpoint, const Row& row, const Names<End>& names) {
  const auto one = [&row](const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t ptr,
                          const Amount& size, const Blob& info, const nb::object& stream,
                          std::string_view priority, std::uint64_t rate, bool verify, const Strides* theirs) {
    const How how{Stream(stream), priority_of(priority), rate, verify};
    return End::carry_out(
        plan_access(self, row.verb, conn_id, at_address(ptr, size).meeting(theirs), BlobKind::kTicket, info),
        how);
  };
  const auto tensor = [&row](BlobKind kind) {
    return [&row, kind](const PyEndpoint& self, std::uint64_t conn_id, nb::handle object, const Blob& blob,
                        const nb::object& stream, std::string_view priority, std::uint64_t rate, bool verify,
                        const Strides* theirs) {
      const Tensor all = tensor_for(row, object);
      const How how{Stream(stream, all), priority_of(priority), rate, verify};
      return End::carry_out(
          plan_access(self, row.verb, conn_id, at_address(row.verb, all).meeting(theirs), kind, blob), how);
    };
  };
  const auto many = [&row](const PyEndpoint& self, std::uint64_t conn_id, const Numbers& ptrs,
                           const Numbers& sizes, const Blobs& infos, const nb::object& stream,
                           std::string_view priority, std::uint64_t rate, bool verify) {
    const How how{Stream(stream), priority_of(priority), rate, verify};
    return End::carry_out(
        plan_access(self, row.verb, conn_id, at_addresses(ptrs, sizes), BlobKind::kTicket, infos), how);
  };
  const std::string text = names.text +
                           "\n\nNo registration is needed. info is what the peer's advertise_ipc() gave (88 "
                           "bytes; RuntimeError\nfor anything else)." +
                           kHowText;
  const std::string of_tensor = std::string(kTensor) + "It need not be registered.\n" + kTensorStream;
  endpoint
      .def(names.one.c_str(), tensor(BlobKind::kDescriptor), "conn_id"_a, "tensor"_a, "meta"_a, nb::kw_only(),
           "stream"_a = nb::none(), "priority"_a = "normal", "rate"_a = 0, "verify"_a = false,
           "theirs"_a = nb::none(), of_tensor.c_str())
      .def(names.one_ipc.c_str(), one, "conn_id"_a, "ptr"_a, "size"_a, "info"_a, nb::kw_only(),
           "stream"_a = nb::none(), "priority"_a = "normal", "rate"_a = 0, "verify"_a = false,
           "theirs"_a = nb::none(), (text + kTheirs).c_str())
      .def(names.one_ipc.c_str(), tensor(BlobKind::kTicket), "conn_id"_a, "tensor"_a, "info"_a, nb::kw_only(),
           "stream"_a = nb::none(), "priority"_a = "normal", "rate"_a = 0, "verify"_a = false,
           "theirs"_a = nb::none(), of_tensor.c_str())
      .def(names.many_ipc.c_str(), many, "conn_id"_a, "ptr_v"_a, "size_v"_a, "info_v"_a, nb::kw_only(),
           "stream"_a = nb::none(), "priority"_a = "normal", "rate"_a = 0, "verify"_a = false, text.c_str());
}

template <class End>
void bind_messages(PyClass& endpoint, const Row& row, const Names<End>& names) {
  const auto carry_out = [&row](const PyEndpoint& self, std::uint64_t conn_id, Local local) {
    return End::carry_out(plan_message(self, row.verb, conn_id, std::move(local)), How{});
  };
  const auto one = [carry_out](const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t mr_id,
                               std::uint64_t ptr, std::size_t size) {
    return carry_out(self, conn_id, in_region(mr_id, ptr, {size}));
  };
  const auto many = [carry_out](const PyEndpoint& self, std::uint64_t conn_id, const Numbers& ids,
                                const Numbers& ptrs, const Numbers& sizes,
                                std::optional<std::size_t> num_iovs) {
    return carry_out(self, conn_id, in_regions(ids, ptrs, sizes, num_iovs));
  };
  const auto tensor = [carry_out, &row](const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t mr_id,
                                        nb::handle object) {
    const Tensor all = tensor_for(row, object);
    return carry_out(self, conn_id, in_region(row.verb, mr_id, all));
  };
  const auto by_address = [carry_out](const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t ptr,
                                      std::size_t size) {
    return carry_out(self, conn_id, at_address(ptr, {size}));
  };
  const auto tensor_by_address = [carry_out, &row](const PyEndpoint& self, std::uint64_t conn_id,
                                                   nb::handle object) {
    const Tensor all = tensor_for(row, object);
    return carry_out(self, conn_id, at_address(row.verb, all));
  };
  const std::string of_tensor = std::string(kTensor) + "Memory on\na GPU is taken to be ready.";
  const std::string of_unregistered = of_tensor + " It need not be registered.";
  endpoint.def(names.one.c_str(), one, "conn_id"_a, "mr_id"_a, "ptr"_a, "size"_a, names.text.c_str())
      .def(names.one.c_str(), tensor, "conn_id"_a, "mr_id"_a, "tensor"_a, of_tensor.c_str())
      .def(names.one.c_str(), tensor_by_address, "conn_id"_a, "tensor"_a, of_unregistered.c_str())
      .def(names.many.c_str(), many, "conn_id"_a, "mr_id_v"_a, "data_ptr_v"_a, "size_v"_a,
           "num_iovs"_a = nb::none(), (names.text + kLists).c_str())
      .def(names.many.c_str(), many, "conn_id"_a, "mr_id_list"_a, "ptr_list"_a, "size_list"_a,
           "num_iovs"_a = nb::none())
      .def(names.one_ipc.c_str(), by_address, "conn_id"_a, "ptr"_a, "size"_a,
           (names.text + "\n\nThe memory needs no registration.").c_str())
      .def(names.one_ipc.c_str(), tensor_by_address, "conn_id"_a, "tensor"_a, of_unregistered.c_str());
}

template <class End>
void bind_all(PyClass& endpoint) {
  for (const Row& row : kOneSided) {
    const Names<End> names(row);
    bind_registered_access(endpoint, row, names);
    bind_access_by_address(endpoint, row, names);
  }
  for (const Row& row : kTwoSided) bind_messages(endpoint, row, Names<End>(row));
}

bool notify(const PyEndpoint& self, std::uint64_t conn_id, const nb::bytes& payload) {
  const auto state = self.state_or_raise();
  const auto link = find_link(*state, conn_id);
  if (!link) return succeeded(tl::unexpected(link.error()));
  const std::string_view view(payload.c_str(), payload.size());
  return succeeded(run(*state, [&] { return (*link)->connection.notify(view); }));
}

std::vector<nb::bytes> take_notifications(const PyEndpoint& self, std::uint64_t conn_id) {
  const auto link = value_or_raise(find_link(*self.state_or_raise(), conn_id));
  std::vector<nb::bytes> out;
  for (const std::string& payload : link->connection.take_notifications()) {
    out.emplace_back(payload.data(), payload.size());
  }
  return out;
}

}  // namespace

void bind_calls(PyClass& endpoint) {
  bind_all<AtOnce>(endpoint);
  bind_all<Asynchronous>(endpoint);
  endpoint
      .def("notify", &notify, "conn_id"_a, "payload"_a,
           "Sends bytes to the peer's application and waits until its engine has them.\n"
           "False with last_error() on failure.")
      .def("take_notifications", &take_notifications, "conn_id"_a,
           "The notifications that have come, oldest first. Never waits. Raises for an unknown id.");
}

}  // namespace p2p::python
