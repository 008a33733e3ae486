// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <chrono>
#include <string>
#include <utility>
#include <variant>

#include "convert/sequences.h"
#include "convert/spans.h"
#include "p2p/host_port.h"
#include "state.h"

namespace p2p::python {
namespace nb = nanobind;
namespace {

/// A peer's GPU as callers name it: an index, or a PCI address.
using GpuName = std::variant<std::int64_t, std::string>;
using Port = std::int64_t;  // -1: not given

Result<std::int32_t> index_of(const GpuName& gpu) {
  if (const auto* index = std::get_if<std::int64_t>(&gpu)) return static_cast<std::int32_t>(*index);
  return gpu_index(std::get<std::string>(gpu));
}

nb::object gpu_result(const Identity& peer) {
  if (gpu_naming() == GpuNaming::kBdf) return nb::str(gpu_bdf(peer.gpu).c_str());
  return nb::int_(peer.gpu);
}

OkAndId no_connection(const Error& error) {
  set_last_error(error);
  return nb::make_tuple(false, kNoConnection);
}

struct Dial {
  std::string host;
  std::uint16_t port = 0;
  Purpose purpose = Purpose::kConnect;
};

/// Connects within the engine's connect timeout; the handshake carries the purpose.
Result<std::shared_ptr<const Link>> dial(State& state, const Dial& to) {
  Identity self = state.identity(to.purpose);
  self.number = state.connections.next_number();
  Connection connection;
  {
    Released released;
    connection = state.engine.connect_async(to.host, to.port, std::nullopt, encode_note(self));
  }
  for (;;) {
    {
      Released released;
      (void)connection.wait_open(kSlice);
    }
    // Not what the wait said: it may have opened while this thread waited for the interpreter.
    if (connection.state() != ConnectionState::kConnecting) {
      const Status open = connection.status();
      if (!open) return tl::unexpected(open.error());
      return state.connections.add(std::move(connection), Link::Origin::kDialled, self.number);
    }
    const bool interrupted = PyErr_CheckSignals() != 0;
    if (interrupted || state.closing.load()) {
      nb::error_scope kept;
      Released released;
      (void)connection.close(std::chrono::nanoseconds{0});
    }
    if (interrupted) throw nb::python_error();
    if (state.closing.load()) return failure(ErrorCode::kCancelled, "the endpoint was closed");
  }
}

/// Without a port: the endpoint of that address and GPU on this host, else the port that both sides set.
Result<std::uint16_t> port_of(const State& state, const std::string& text, const GpuName& gpu, Port port) {
  const Result<HostPort> place = HostPort::parse(text);
  if (!place) return tl::unexpected(place.error());
  const std::string& host = place->host;
  if (port > 0 && port <= 0xffff) return place->port_or(static_cast<std::uint16_t>(port));
  if (port == -1 && place->port) return *place->port;
  if (port != -1) return failure(ErrorCode::kInvalidArgument, "port " + std::to_string(port));
  if (const Result<std::int32_t> index = index_of(gpu)) {
    if (const auto found = find_local(*index, host, std::chrono::nanoseconds{0}, {}, state.socket_dir))
      return found->port;
  }
  const Result<Options> options = Options::from_environment();
  if (options && options->port != 0) return options->port;
  return failure(ErrorCode::kInvalidArgument,
                 "connect to " + host +
                     " without remote_port: no endpoint of that address and GPU on this host, and "
                     "UCCL_P2P_PORT is not one port (the same on both sides)");
}

OkAndId connect(PyEndpoint& self, const std::string& host, const GpuName& gpu, Port port) {
  const auto state = self.state_or_raise();
  const Result<std::uint16_t> to = port_of(*state, host, gpu, port);
  if (!to) return no_connection(to.error());
  const auto link = dial(*state, {.host = host, .port = *to});
  if (!link) return no_connection(link.error());
  return nb::make_tuple(true, (*link)->id);
}

/// Connects to an endpoint of a GPU on this host. Programs start in any order: one that is not there yet may
/// come within the connect timeout. One that cannot be reached, in another container say, is passed over.
Result<std::shared_ptr<const Link>> dial_local(State& state, std::int32_t gpu) {
  const Deadline deadline = std::chrono::steady_clock::now() + state.connect_timeout;
  std::vector<LocalEndpoint> refused;
  std::optional<Error> refusal;
  for (;;) {
    Result<LocalEndpoint> found;
    {
      Released released;
      found = find_local(gpu, std::nullopt, next_slice(deadline), refused, state.socket_dir);
    }
    if (found) {
      auto link = dial(state, {.host = found->address, .port = found->port, .purpose = Purpose::kLocal});
      if (link || state.closing.load()) return link;
      refusal = link.error();
      refused.push_back(std::move(*found));
    } else if (found.error().code != ErrorCode::kNotFound) {
      return tl::unexpected(found.error());
    }
    if (passed(deadline)) return tl::unexpected(refusal ? *refusal : found.error());
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (state.closing.load()) return failure(ErrorCode::kCancelled, "the endpoint was closed");
  }
}

OkAndId connect_local(PyEndpoint& self, const GpuName& gpu, Port port) {
  const auto state = self.state_or_raise();
  Result<std::shared_ptr<const Link>> link;
  if (port > 0 && port <= 0xffff) {
    link = dial(*state, {.host = state->engine.address(),
                         .port = static_cast<std::uint16_t>(port),
                         .purpose = Purpose::kLocal});
  } else {
    const Result<std::int32_t> index = index_of(gpu);
    if (!index) return no_connection(index.error());
    link = dial_local(*state, *index);
  }
  if (!link) return no_connection(link.error());
  return nb::make_tuple(true, (*link)->id);
}

Result<std::shared_ptr<const Link>> accept_next(PyEndpoint& self, Purpose purpose,
                                                std::optional<double> timeout) {
  const auto state = self.state_or_raise();
  const Deadline deadline = deadline_in(timeout);
  for (;;) {
    Result<std::shared_ptr<const Link>> link;
    {
      Released released;
      link = state->connections.accept(state->engine, purpose, next_slice(deadline));
    }
    if (link || link.error().code != ErrorCode::kTimedOut) return link;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (state->closing.load()) return failure(ErrorCode::kCancelled, "the endpoint was closed");
    if (passed(deadline)) return link;
  }
}

Tuple<bool, std::string, std::int32_t, std::uint64_t> accept(PyEndpoint& self,
                                                             std::optional<double> timeout) {
  const auto link = accept_next(self, Purpose::kConnect, timeout);
  // An index however GPUs are named: callers compare it with numbers.
  if (link) return nb::make_tuple(true, (*link)->peer.address, (*link)->peer.gpu, (*link)->id);
  set_last_error(link.error());
  return nb::make_tuple(false, "", -1, kNoConnection);
}

Tuple<bool, GpuName, std::uint64_t> accept_local(PyEndpoint& self, std::optional<double> timeout) {
  const auto link = accept_next(self, Purpose::kLocal, timeout);
  if (link) return nb::make_tuple(true, gpu_result((*link)->peer), (*link)->id);
  set_last_error(link.error());
  return nb::make_tuple(false, gpu_result(Identity{.gpu = -1}), kNoConnection);
}

Identity metadata_or_raise(const Blob& metadata) {
  if (metadata.size() > Blob::kCapacity) {
    raise(Error{ErrorCode::kInvalidArgument, "metadata of " + std::to_string(metadata.size()) + " bytes"});
  }
  return value_or_raise(decode_metadata(metadata.bytes()));
}

OkAndId add_remote_endpoint(PyEndpoint& self, const Blob& metadata) {
  const auto state = self.state_or_raise();
  const Identity peer = metadata_or_raise(metadata);
  const std::string memo(reinterpret_cast<const char*>(metadata.bytes().data()), metadata.size());
  {
    const std::lock_guard lock(state->memo_mutex);
    if (const auto known = state->by_metadata.find(memo); known != state->by_metadata.end()) {
      const auto link = state->connections.find(known->second);
      if (link && link->connection.state() == ConnectionState::kOpen) return nb::make_tuple(true, link->id);
      state->by_metadata.erase(known);
    }
  }
  const auto link =
      dial(*state, {.host = peer.address, .port = peer.port, .purpose = Purpose::kRemoteEndpoint});
  if (!link) return no_connection(link.error());
  const std::lock_guard lock(state->memo_mutex);
  state->by_metadata.insert_or_assign(memo, (*link)->id);
  return nb::make_tuple(true, (*link)->id);
}

bool remove_remote_endpoint(PyEndpoint& self, std::uint64_t conn_id) {
  const auto state = self.state_or_raise();
  const auto link = state->connections.remove(conn_id);
  if (!link) return succeeded(failure(ErrorCode::kNotFound, "Invalid conn_id " + std::to_string(conn_id)));
  Released released;
  constexpr std::chrono::seconds kDrain{5};
  (void)link->connection.close(kDrain);  // forgotten either way
  return true;
}

nb::bytes get_metadata(const PyEndpoint& self) {
  const std::string metadata = encode_metadata(self.state_or_raise()->identity(), gpu_naming());
  return nb::bytes(metadata.data(), metadata.size());
}

Tuple<std::string, std::uint16_t, GpuName> parse_metadata(const Blob& metadata) {
  const Identity identity = metadata_or_raise(metadata);
  // A PCI address is given back as it came, also one of another machine.
  const std::size_t bdf_at = (identity.address.find(':') == std::string::npos ? 4 : 16) + 3;
  if (names_gpu_by_index(metadata.bytes()) || gpu_naming() == GpuNaming::kIndex) {
    return nb::make_tuple(identity.address, identity.port, gpu_result(identity));
  }
  const auto bdf = metadata.bytes().subspan(bdf_at);
  return nb::make_tuple(identity.address, identity.port,
                        nb::str(reinterpret_cast<const char*>(bdf.data()), bdf.size()));
}

nb::typed<nb::dict, nb::str, nb::any> peer_of(const PyEndpoint& self, std::uint64_t conn_id) {
  const auto link = value_or_raise(find_link(*self.state_or_raise(), conn_id));
  nb::dict out;
  out["address"] = link->peer.address;
  out["port"] = link->peer.port;
  out["gpu_idx"] = link->peer.gpu;
  out["identity"] = link->connection.peer().identity;
  return out;
}

nb::typed<nb::list, nb::typed<nb::dict, nb::str, nb::str>> routes_of(const PyEndpoint& self,
                                                                     std::uint64_t conn_id) {
  const auto link = value_or_raise(find_link(*self.state_or_raise(), conn_id));
  const auto name = [](MemoryKind kind) { return kind == MemoryKind::kCuda ? "cuda" : "host"; };
  nb::list out;
  for (const Route& route : link->connection.routes()) {
    nb::dict row;
    row["local"] = name(route.local);
    row["remote"] = name(route.remote);
    row["transport"] = route.transport;
    row["reason"] = route.reason;
    row["detail"] = route.detail;
    row["history"] = route.history;
    out.append(row);
  }
  return out;
}

// Waits for the peer's word about its memory, as a transfer would.
nb::typed<nb::dict, nb::str, nb::any> explain(const PyEndpoint& self, std::uint64_t conn_id,
                                              std::uint64_t mr_id, const Blob& descriptor) {
  constexpr std::chrono::seconds kPatience{30};
  const auto link = value_or_raise(find_link(*self.state_or_raise(), conn_id));
  const auto told = [&]() -> Result<Explanation> {
    const nb::gil_scoped_release released;
    const auto parsed = RegionDescriptor::parse(descriptor.bytes());
    if (!parsed) return tl::unexpected(parsed.error());
    const auto remote = link->connection.import_region(*parsed);
    if (!remote) return tl::unexpected(remote.error());
    if (const Status known = link->connection.wait_imported(*remote, kPatience); !known) {
      return tl::unexpected(known.error());
    }
    return link->connection.explain(region_id(mr_id), *remote);
  }();
  const Explanation explanation = value_or_raise(told);
  nb::list passed;
  for (const Explanation::Passed& each : explanation.passed) {
    nb::dict row;
    row["transport"] = each.transport;
    row["obstacle"] = std::string(to_string(each.obstacle));
    row["reason"] = each.reason;
    passed.append(row);
  }
  nb::dict out;
  out["transport"] = explanation.transport;
  out["detail"] = explanation.detail;
  out["passed"] = passed;
  return out;
}

std::uint64_t conn_id_of_rank(const PyEndpoint& self, std::int64_t rank) {
  const auto state = self.state_or_raise();
  const std::lock_guard lock(state->memo_mutex);
  const auto found = state->by_rank.find(rank);
  return found == state->by_rank.end() ? kNoConnection : found->second;
}

void set_rank(PyEndpoint& self, std::int64_t rank, std::uint64_t conn_id) {
  const auto state = self.state_or_raise();
  const std::lock_guard lock(state->memo_mutex);
  state->by_rank.insert_or_assign(rank, conn_id);
}

void bind_dialing(PyClass& endpoint) {
  constexpr const char* kConnect =
      "Connects to a peer's endpoint and waits until the connection is open.\n\n"
      "The GPU (an index or a PCI address) only serves to find an endpoint on this host when remote_port\n"
      "is -1. Returns (ok, conn_id); (False, 2**64 - 1) with last_error() within the connect timeout.";
  constexpr const char* kConnectLocal =
      "Connects to this user's endpoint for a GPU (index or PCI address) on this host; it need not call\n"
      "accept_local(). The newest process wins where several use one index; remote_port names one. One that\n"
      "is not there yet is waited for, within the connect timeout. Returns (ok, conn_id).";
  using namespace nb::literals;
  endpoint.def("connect", &connect, "remote_ip_addr"_a, "remote_gpu_idx"_a, "remote_port"_a = -1, kConnect)
      .def("connect", &connect, "remote_ip_addr"_a, "remote_gpu_bdf"_a, "remote_port"_a = -1)
      .def("connect_local", &connect_local, "remote_gpu_idx"_a, "remote_port"_a = -1, kConnectLocal)
      .def("connect_local", &connect_local, "remote_gpu_bdf"_a, "remote_port"_a = -1)
      .def("accept", &accept, "timeout"_a = nb::none(),
           "Waits (timeout seconds; None: until one comes) for a peer's connect() or "
           "add_remote_endpoint().\n\n"
           "Returns (ok, remote_ip_addr, remote_gpu_idx, conn_id): the address and GPU that the peer has in\n"
           "its own metadata. Any number of threads may wait at once.")
      .def("accept_local", &accept_local, "timeout"_a = nb::none(),
           "Waits for a connect_local(), or an add_remote_endpoint() on this host. Returns (ok, "
           "remote_gpu_idx,\n"
           "conn_id).");
}

}  // namespace

void bind_connections(PyClass& endpoint) {
  using namespace nb::literals;
  bind_dialing(endpoint);
  endpoint
      .def(
          "start_passive_accept",
          [](PyEndpoint& self) {
            self.state_or_raise()->connections.serve_passively();
            return true;
          },
          "Lets peers use add_remote_endpoint() without a call of accept() here. Always True: the engine\n"
          "serves peers by itself.")
      .def("add_remote_endpoint", &add_remote_endpoint, "metadata_bytes"_a,
           "Connects to the endpoint with this metadata, or finds the connection made before.\n\n"
           "Returns (ok, conn_id). Raises RuntimeError for bytes that are no metadata.")
      .def("remove_remote_endpoint", &remove_remote_endpoint, "conn_id"_a,
           "Closes a connection and forgets its id. False for an unknown id.")
      .def("get_metadata", &get_metadata,
           "What peers need to connect here: 10 bytes for IPv4, 22 for IPv6 (address, port, GPU index).")
      .def_static("parse_metadata", &parse_metadata, "metadata"_a,
                  "The (address, port, GPU) of metadata. Raises RuntimeError for another length.")
      .def("conn_id_of_rank", &conn_id_of_rank, "rank"_a,
           "The connection to a rank of uccl.collective; 2**64 - 1 if there is none.")
      .def("_set_rank", &set_rank, "rank"_a, "conn_id"_a, "For uccl.collective.")
      .def("peer", &peer_of, "conn_id"_a,
           "The peer's own address, port and GPU index as a dict, and its identity: the name of the key\n"
           "that the side that dialled has shown, or the common name in the peer's certificate. Raises for\n"
           "an unknown id.")
      .def("routes", &routes_of, "conn_id"_a,
           "Which transport moves which kinds of memory, and why: a list of dicts with local, remote,\n"
           "transport, reason and detail. Raises for an unknown id.")
      .def("explain", &explain, "conn_id"_a, "mr_id"_a, "descriptor"_a,
           "What moves bytes between my memory and what the peer advertised: a dict with transport (empty:\n"
           "none), detail, and passed, a list of the transports that are preferred to it, each a dict with\n"
           "transport, obstacle (unusable, not_carried, not_registered or not_shared) and reason. Waits for\n"
           "the peer's word about its memory. Raises for unknown ids and memory that is gone.");
}

}  // namespace p2p::python
