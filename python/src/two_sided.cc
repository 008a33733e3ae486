// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "sequences.h"
#include "spans.h"
#include "state.h"
#include "tensors.h"

namespace p2p::python {
namespace nb = nanobind;
namespace {

enum class Direction { kSend, kReceive };

struct Message {
  std::shared_ptr<State> state;
  std::shared_ptr<const Link> link;
  Recycled<LocalSpan> spans;
  std::vector<MemoryTable::Region> held = {};  ///< by `*_ipc` calls, until it is posted

  template <Direction kDirection>
  Transfer post() const {
    if constexpr (kDirection == Direction::kSend) return link->connection.send(*spans);
    return link->connection.recv(*spans);
  }
};

template <Direction kDirection>
Result<Message> message(const PyEndpoint& self, std::uint64_t conn_id, Recycled<LocalSpan> spans) {
  Message made{.state = self.state_or_raise(), .link = nullptr, .spans = std::move(spans)};
  const auto link = find_link(*made.state, conn_id);
  if (!link) return tl::unexpected(link.error());
  made.link = *link;
  // What is wrong here is told now, not when the peer's half has come.
  if constexpr (kDirection == Direction::kReceive) made.state->memory.clip(*made.spans);
  if (const Status good = made.state->memory.check(*made.spans); !good) return tl::unexpected(good.error());
  return made;
}

template <Direction kDirection>
Result<Message> message(const PyEndpoint& self, std::uint64_t conn_id, const LocalSpan& span) {
  Recycled<LocalSpan> spans;
  spans->push_back(span);
  return message<kDirection>(self, conn_id, std::move(spans));
}

/// For calls that name memory by address alone.
template <Direction kDirection>
Result<Message> unregistered(const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t ptr,
                             std::size_t size) {
  const auto state = self.state_or_raise();
  LocalSpan span = local_span(0, ptr, size);
  auto held = state->memory.implicit(state->engine, {&span, 1});
  if (!held) return tl::unexpected(std::move(held.error()));
  auto made = message<kDirection>(self, conn_id, span);
  if (made) made->held = std::move(*held);
  return made;
}

/// Where the peer has connected to this side as well and nobody has accepted that, it sends on what it made:
/// that is where to receive.
template <Direction kDirection>
bool cross(Message& made) {
  if constexpr (kDirection == Direction::kSend) return false;
  const auto theirs = made.state->connections.crossing(made.state->engine, *made.link);
  if (theirs == nullptr) return false;
  made.link = theirs;
  return true;
}

/// Waits for a message. The peer may connect to this side only after that has begun.
Status receive(Message& made) {
  for (;;) {
    Transfer transfer;
    {
      Released released;
      transfer = made.post<Direction::kReceive>();
      (void)transfer.wait(kSlice);
    }
    bool moved = false;
    while (!transfer.done()) {
      const Status outcome = wait_done(transfer, std::chrono::steady_clock::now() + kSlice,
                                       made.state->closing, OnInterrupt::kCancel);
      if (transfer.done()) break;
      if (outcome.error().code != ErrorCode::kTimedOut) return outcome;
      moved = cross<Direction::kReceive>(made);
      if (moved) transfer.cancel();
    }
    const Status outcome = transfer.status();
    const bool nothing_came = !outcome && outcome.error().code == ErrorCode::kCancelled;
    if (!moved || !nothing_came) return outcome;
  }
}

template <Direction kDirection>
bool finish(Result<Message> made) {
  if (!made) return succeeded(tl::unexpected(made.error()));
  if constexpr (kDirection == Direction::kReceive) {
    cross<kDirection>(*made);
    if (made->link->origin == Link::Origin::kDialled) return succeeded(receive(*made));
  }
  return succeeded(run(*made->state, [&] { return made->template post<kDirection>(); }));
}

template <Direction kDirection>
OkAndId begin(Result<Message> made) {
  if (!made) return not_started(made.error());
  cross<kDirection>(*made);
  constexpr auto kKind =
      kDirection == Direction::kSend ? TransferTable::Kind::kSend : TransferTable::Kind::kReceive;
  return start(*made->state, kKind, [&](std::uint64_t /*id*/) { return made->template post<kDirection>(); });
}

template <Direction kDirection>
bool one(const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t mr_id, std::uint64_t ptr,
         std::size_t size) {
  return finish<kDirection>(message<kDirection>(self, conn_id, local_span(mr_id, ptr, size)));
}

template <Direction kDirection>
OkAndId one_async(const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t mr_id, std::uint64_t ptr,
                  std::size_t size) {
  return begin<kDirection>(message<kDirection>(self, conn_id, local_span(mr_id, ptr, size)));
}

template <Direction kDirection>
bool many(const PyEndpoint& self, std::uint64_t conn_id, const Numbers& ids, const Numbers& ptrs,
          const Numbers& sizes, std::optional<std::size_t> num_iovs) {
  return finish<kDirection>(
      message<kDirection>(self, conn_id, value_or_raise(local_spans(ids, ptrs, sizes, num_iovs))));
}

template <Direction kDirection>
OkAndId many_async(const PyEndpoint& self, std::uint64_t conn_id, const Numbers& ids, const Numbers& ptrs,
                   const Numbers& sizes, std::optional<std::size_t> num_iovs) {
  return begin<kDirection>(
      message<kDirection>(self, conn_id, value_or_raise(local_spans(ids, ptrs, sizes, num_iovs))));
}

template <Direction kDirection>
bool local(const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t ptr, std::size_t size) {
  return finish<kDirection>(unregistered<kDirection>(self, conn_id, ptr, size));
}

template <Direction kDirection>
OkAndId local_async(const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t ptr, std::size_t size) {
  return begin<kDirection>(unregistered<kDirection>(self, conn_id, ptr, size));
}

/// Forms that take a tensor in place of address and size, registered or not. `run` is `finish` or `begin`.
template <Direction kDirection, class Run>
void bind_tensors(PyClass& endpoint, Run run, const std::string& name, const std::string& suffix) {
  using namespace nb::literals;
  const auto memory = [](nb::handle object) {
    return kDirection == Direction::kReceive ? writable_tensor_of(object, "recv") : tensor_of(object, "send");
  };
  const auto unregistered_one = [=](const PyEndpoint& self, std::uint64_t conn_id, nb::handle object) {
    const Tensor tensor = memory(object);
    return run(unregistered<kDirection>(self, conn_id, tensor.address, tensor.bytes));
  };
  const std::string text =
      "The same for all of a contiguous tensor, array or buffer. Memory on a GPU is taken to be ready.";
  endpoint
      .def((name + suffix).c_str(),
           [=](const PyEndpoint& self, std::uint64_t conn_id, std::uint64_t mr_id, nb::handle object) {
             const Tensor tensor = memory(object);
             return run(message<kDirection>(self, conn_id, local_span(mr_id, tensor.address, tensor.bytes)));
           },
           "conn_id"_a, "mr_id"_a, "tensor"_a, text.c_str())
      .def((name + suffix).c_str(), unregistered_one, "conn_id"_a, "tensor"_a,
           (text + " It need not be registered.").c_str())
      .def((name + "_ipc" + suffix).c_str(), unregistered_one, "conn_id"_a, "tensor"_a, text.c_str());
}

template <Direction kDirection>
void bind_direction(PyClass& endpoint, const std::string& name, const std::string& verb) {
  using namespace nb::literals;
  const std::string sync = verb + " Returns True when done, else False with last_error().";
  const std::string async = verb + " Returns (ok, transfer_id) at once.";
  const std::string lists =
      "\n\nLists or NumPy arrays. Raises RuntimeError unless all have num_iovs entries.";
  const std::string no_registration = "\n\nThe memory needs no registration.";
  endpoint.def(name.c_str(), &one<kDirection>, "conn_id"_a, "mr_id"_a, "ptr"_a, "size"_a, sync.c_str())
      .def((name + "_async").c_str(), &one_async<kDirection>, "conn_id"_a, "mr_id"_a, "ptr"_a, "size"_a,
           async.c_str())
      .def((name + "v").c_str(), &many<kDirection>, "conn_id"_a, "mr_id_v"_a, "data_ptr_v"_a, "size_v"_a,
           "num_iovs"_a = nb::none(), (sync + lists).c_str())
      .def((name + "v").c_str(), &many<kDirection>, "conn_id"_a, "mr_id_list"_a, "ptr_list"_a, "size_list"_a,
           "num_iovs"_a = nb::none())
      .def((name + "v_async").c_str(), &many_async<kDirection>, "conn_id"_a, "mr_id_v"_a, "data_ptr_v"_a,
           "size_v"_a, "num_iovs"_a = nb::none(), (async + lists).c_str())
      .def((name + "v_async").c_str(), &many_async<kDirection>, "conn_id"_a, "mr_id_list"_a, "ptr_list"_a,
           "size_list"_a, "num_iovs"_a = nb::none())
      .def((name + "_ipc").c_str(), &local<kDirection>, "conn_id"_a, "ptr"_a, "size"_a,
           (sync + no_registration).c_str())
      .def((name + "_ipc_async").c_str(), &local_async<kDirection>, "conn_id"_a, "ptr"_a, "size"_a,
           (async + no_registration).c_str());
  bind_tensors<kDirection>(endpoint, finish<kDirection>, name, "");
  bind_tensors<kDirection>(endpoint, begin<kDirection>, name, "_async");
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

void bind_two_sided(PyClass& endpoint) {
  using namespace nb::literals;
  bind_direction<Direction::kSend>(
      endpoint, "send", "Sends size bytes; the n-th send of one side meets the n-th recv of the other.");
  bind_direction<Direction::kReceive>(
      endpoint, "recv", "Receives the next message; size is the most it may have, a longer one fails both.");
  endpoint
      .def("notify", &notify, "conn_id"_a, "payload"_a,
           "Sends bytes to the peer's application and waits until its engine has them.\n"
           "False with last_error() on failure.")
      .def("take_notifications", &take_notifications, "conn_id"_a,
           "The notifications that have come, oldest first. Never waits. Raises for an unknown id.");
}

}  // namespace p2p::python
