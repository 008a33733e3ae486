// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/tensors.h"
#include "plan.h"

namespace p2p::python {
namespace nb = nanobind;
namespace {

constexpr std::uint64_t kUnregistered = ~std::uint64_t{0};

using Descriptor = std::array<std::byte, RegionDescriptor::kBytes>;

/// Memory for transfer(): mine, or a peer's that came as bytes.
struct XferDesc {
  std::uint64_t addr = 0;
  std::uint64_t size = 0;
  std::uint64_t mr_id = 0;
  Descriptor region{};  ///< names the whole registered range; zeros: none

  /// The descriptor in words, so that what is built from another's keys names the same region.
  std::vector<std::uint32_t> keys() const {
    if (region == Descriptor{}) return {};
    std::vector<std::uint32_t> words(region.size() / sizeof(std::uint32_t));
    std::memcpy(words.data(), region.data(), region.size());
    return words;
  }

  void set_keys(const std::vector<std::uint32_t>& words) {
    if (!words.empty() && words.size() * sizeof(std::uint32_t) != region.size()) {
      raise(Error{ErrorCode::kInvalidArgument,
                  "XferDesc: lkeys and rkeys are those of another XferDesc or empty, not " +
                      std::to_string(words.size()) + " words"});
    }
    region = Descriptor{};
    if (!words.empty()) std::memcpy(region.data(), words.data(), region.size());
  }
};

// Serialized: mark, count, then for each address, size, region id and descriptor. Little endian.
constexpr std::array<char, 8> kMark{'u', 'c', 'c', 'l', 'd', 's', 'c', '1'};
constexpr std::size_t kHead = kMark.size() + sizeof(std::uint64_t);
constexpr std::size_t kEach = 3 * sizeof(std::uint64_t) + RegionDescriptor::kBytes;

constexpr std::chrono::seconds kDeregister{10};

/// Arrays with gaps have always been a TypeError here, tensors a ValueError.
Tensor memory_of(nb::handle object) {
  try {
    return tensor_of(object, "register_memory", Use::kDescribed);
  } catch (const nb::builtin_exception& error) {
    if (nb::hasattr(object, "data_ptr") || error.type() != nb::exception_type::value_error) throw;
    throw nb::type_error(error.what());
  }
}

std::vector<XferDesc> register_memory(const PyEndpoint& self, const nb::typed<nb::list, nb::any>& tensors) {
  const auto state = self.state_or_raise();
  std::vector<Tensor> memories;
  for (nb::handle tensor : tensors) memories.push_back(memory_of(tensor));
  std::vector<XferDesc> out;
  out.reserve(memories.size());
  for (const Tensor& memory : memories) {
    XferDesc desc{.addr = memory.address, .size = memory.bytes, .mr_id = kUnregistered, .region = {}};
    const auto id = state->memory.add(state->engine, memory.address, memory.bytes,
                                      {.read_only = !memory.writable, .peers = {}});
    if (id) {
      state->adopt_gpu(*id);
      desc.mr_id = *id;
      desc.region = value_or_raise(state->memory.describe(*id, memory.address, memory.bytes)).serialize();
    } else {
      set_last_error(id.error());
    }
    out.push_back(desc);
  }
  return out;
}

bool deregister_memory(const PyEndpoint& self, const std::vector<XferDesc>& descs) {
  const auto state = self.state_or_raise();
  Status first;
  Released released;
  for (const XferDesc& desc : descs) {
    const Status removed = state->memory.remove(desc.mr_id, kDeregister);
    if (first && !removed) first = removed;
  }
  if (!first) set_last_error(first.error());
  return first.has_value();
}

nb::bytes serialize(const std::vector<XferDesc>& descs) {
  std::string out(kMark.data(), kMark.size());
  out.reserve(kHead + descs.size() * kEach);
  const auto put = [&out](const auto& value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  put(std::uint64_t{descs.size()});
  for (const XferDesc& desc : descs) {
    put(desc.addr);
    put(desc.size);
    put(desc.mr_id);
    put(desc.region);
  }
  return nb::bytes(out.data(), out.size());
}

std::vector<XferDesc> deserialize(const nb::bytes& bytes) {
  const char* at = bytes.c_str();
  const std::size_t size = bytes.size();
  if (size == 0) return {};
  std::uint64_t count = 0;
  if (size >= kHead) std::memcpy(&count, at + kMark.size(), sizeof count);
  if (size < kHead || std::memcmp(at, kMark.data(), kMark.size()) != 0 || (size - kHead) % kEach != 0 ||
      (size - kHead) / kEach != count) {
    raise(Error{ErrorCode::kInvalidArgument, "deserialize_descs: not what get_serialized_descs gave"});
  }
  at += kHead;
  const auto get = [&at](auto& value) {
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
  };
  std::vector<XferDesc> descs(count);
  for (XferDesc& desc : descs) {
    get(desc.addr);
    get(desc.size);
    get(desc.mr_id);
    get(desc.region);
  }
  return descs;
}

/// `size` bytes of the peer's from the descriptor's address on, which may have been moved within its region.
Result<RemoteSpan> remote_span(Importer& importer, const XferDesc& desc, std::uint64_t size) {
  RemoteSpan span;
  if (Status known = importer.locate(desc.region, span); !known) return tl::unexpected(known.error());
  const std::uint64_t base = span.address;
  const Result<RegionDescriptor> whole = RegionDescriptor::parse(desc.region);
  const std::uint64_t offset = desc.addr - base;
  if (desc.addr < base || offset > whole->size || size > whole->size - offset) {
    return failure(ErrorCode::kOutOfRange, "transfer: " + std::to_string(size) + " bytes at " +
                                               std::to_string(desc.addr) + " lie outside the peer's region");
  }
  span.address = desc.addr;
  span.size = size;
  return span;
}

Verb verb_of(std::string_view name) {
  if (name == "write" || name == "WRITE") return Verb::kWrite;
  if (name == "read" || name == "READ") return Verb::kRead;
  raise(Error{ErrorCode::kInvalidArgument,
              "transfer: op_name must be 'read' or 'write', not '" + std::string(name) + "'"});
}

OkAndId transfer(const PyEndpoint& self, std::uint64_t conn_id, const std::string& op_name,
                 const std::vector<XferDesc>& local, const std::vector<XferDesc>& remote, const How& how) {
  Plan plan = value_or_raise(open_plan(self, verb_of(op_name), conn_id));
  if (local.size() != remote.size()) {
    raise(Error{ErrorCode::kInvalidArgument, "transfer: " + std::to_string(local.size()) +
                                                 " local descriptors, " + std::to_string(remote.size()) +
                                                 " remote ones"});
  }
  Importer importer(plan.link->connection);
  const std::span<LocalSpan> here = plan.local.resize(local.size());
  const std::span<RemoteSpan> there = plan.remote.resize(local.size());
  for (std::size_t i = 0; i < local.size(); ++i) {
    const Result<RemoteSpan> span = remote_span(importer, remote[i], local[i].size);
    if (!span) return not_started(span.error());
    here[i] = local_span(local[i].mr_id, local[i].addr, local[i].size);
    there[i] = *span;
  }
  return begin(std::move(plan), how);
}

void bind_desc(nb::module_& module) {
  nb::class_<XferDesc>(module, "XferDesc", "Memory for Endpoint.transfer().")
      .def(nb::init<>())
      .def_rw("addr", &XferDesc::addr, "Address of the first byte, in its owner's process.")
      .def_rw("size", &XferDesc::size, "Bytes.")
      .def_rw("mr_id", &XferDesc::mr_id, "Region id at the owner; 2**64 - 1 if it could not be registered.")
      .def_prop_rw("lkeys", &XferDesc::keys, &XferDesc::set_keys,
                   "What names the region to peers, as words; empty if it could not be registered. Those of\n"
                   "another XferDesc may be set.")
      .def_prop_rw("rkeys", &XferDesc::keys, &XferDesc::set_keys, "As lkeys.")
      .def("__repr__", [](const XferDesc& d) {
        return "<XferDesc addr=" + std::to_string(d.addr) + " size=" + std::to_string(d.size) +
               " mr_id=" + std::to_string(d.mr_id) + ">";
      });
}

}  // namespace

void bind_descriptors(nb::module_& module, PyClass& endpoint) {
  using namespace nb::literals;
  bind_desc(module);
  endpoint
      .def("register_memory", &register_memory, "tensor_list"_a,
           "Registers contiguous tensors or arrays, or whatever has data_ptr(), numel() and element_size():\n"
           "a list of XferDesc. Each is a registration of its own, also of the same memory. Peers may not "
           "write "
           "to\nmemory that is read-only here.")
      .def("deregister_memory", &deregister_memory, "desc_list"_a,
           "Ends registrations of register_memory(). False if one was unknown or stayed in use.")
      .def(
          "get_serialized_descs",
          [](const PyEndpoint&, const std::vector<XferDesc>& descs) { return serialize(descs); },
          "desc_list"_a, "XferDescs as bytes for a peer.")
      .def(
          "deserialize_descs", [](const PyEndpoint&, const nb::bytes& bytes) { return deserialize(bytes); },
          "serialized_bytes"_a, "The reverse; [] for no bytes. Raises RuntimeError for other bytes.")
      .def(
          "transfer",
          [](const PyEndpoint& self, std::uint64_t conn_id, const std::string& op_name,
             const std::vector<XferDesc>& local, const std::vector<XferDesc>& remote,
             const nb::object& stream, std::string_view priority, std::uint64_t rate, bool verify) {
            const How how{Stream(stream), priority_of(priority), rate, verify};
            return transfer(self, conn_id, op_name, local, remote, how);
          },
          "conn_id"_a, "op_name"_a, "local_desc_list"_a, "remote_desc_list"_a, nb::kw_only(),
          "stream"_a = nb::none(), "priority"_a = "normal", "rate"_a = 0, "verify"_a = false,
          (std::string(
               "Starts a 'read' or 'write' of each pair of XferDescs: (ok, transfer_id). The local sizes "
               "count.\n\n"
               "Raises RuntimeError for an unknown connection or operation and for lists of different "
               "lengths.") +
           kHowText)
              .c_str());
}

}  // namespace p2p::python
