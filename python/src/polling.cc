// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "state.h"

namespace p2p::python {
namespace nb = nanobind;
namespace {

/// A thread that asks for the same unfinished transfer again and again is spinning: it then waits this long
/// without the interpreter, so that the engine gets the core.
constexpr std::chrono::microseconds kPollWait{50};
thread_local std::uint64_t polled_last = 0;

struct XferHandle {
  std::uint64_t conn_id = 0;
  std::string op_name;
  std::uint64_t transfer_id = 0;
};

Tuple<bool, bool> poll_async(const PyEndpoint& self, std::uint64_t transfer_id) {
  const auto state = self.state_or_raise();
  const TransferTable::Found found = state->transfers.find(transfer_id);
  if (!found.transfer.valid()) return nb::make_tuple(succeeded(found.outcome), true);
  if (!found.transfer.done() && std::exchange(polled_last, transfer_id) == transfer_id) {
    Released released;
    (void)found.transfer.wait(kPollWait);
  }
  if (!found.transfer.done()) return nb::make_tuple(true, false);
  const Status outcome = found.transfer.status();
  state->transfers.report(transfer_id, outcome);
  return nb::make_tuple(succeeded(outcome), true);
}

std::uint64_t wait(const PyEndpoint& self, std::uint64_t transfer_id, std::optional<double> timeout) {
  const auto state = self.state_or_raise();
  const Deadline deadline = deadline_in(timeout);
  const TransferTable::Found found = state->transfers.find(transfer_id);
  if (!found.transfer.valid()) {
    raise_unless(found.outcome);
    return 0;
  }
  const Status outcome = wait_done(found.transfer, deadline, state->closing, OnInterrupt::kLeave);
  if (found.transfer.done()) state->transfers.report(transfer_id, outcome);
  raise_unless(outcome);
  return found.transfer.bytes();
}

bool cancel(const PyEndpoint& self, std::uint64_t transfer_id) {
  const auto state = self.state_or_raise();
  const TransferTable::Found found = state->transfers.find(transfer_id);
  if (!found.transfer.valid() || found.transfer.done()) {
    return succeeded(
        failure(ErrorCode::kNotFound, "transfer " + std::to_string(transfer_id) + " is not under way"));
  }
  Released released;
  found.transfer.cancel();
  return true;
}

/// The descriptor of one event loop.
struct Watcher {
  std::shared_ptr<Completions> completions = value_or_raise(Completions::create());
};

void watch(const Watcher& self, const PyEndpoint& endpoint, std::uint64_t transfer_id) {
  const auto state = endpoint.state_or_raise();
  const TransferTable::Found found = state->transfers.find(transfer_id);
  if (found.transfer.valid()) {
    Completions::watch(self.completions, transfer_id, found.transfer);
  } else {
    self.completions->push(transfer_id);
  }
}

}  // namespace

void bind_transfers(nb::module_& module, PyClass& endpoint) {
  using namespace nb::literals;
  nb::class_<XferHandle>(module, "XferHandle", "A transfer by name; kept for callers of older versions.")
      .def_ro("conn_id", &XferHandle::conn_id)
      .def_ro("op_name", &XferHandle::op_name)
      .def_ro("transfer_id", &XferHandle::transfer_id);
  nb::class_<Watcher>(module, "_Completions", "Tells an event loop which transfers are done.")
      .def(nb::init<>())
      .def("fileno", [](const Watcher& self) { return self.completions->fd(); })
      .def("watch", &watch, "endpoint"_a, "transfer_id"_a)
      .def("take", [](const Watcher& self) { return self.completions->take(); });
  endpoint
      .def("poll_async", &poll_async, "transfer_id"_a,
           "(ok, is_done) of an asynchronous transfer.\n\n"
           "(True, False) while under way; (True, True) when done; (False, True) with last_error() when it\n"
           "failed or the id was never given. Asking again gives the same answer.")
      .def("wait", &wait, "transfer_id"_a, "timeout"_a = nb::none(),
           "Waits until done (timeout in seconds; None: as long as it takes) and returns its bytes.\n\n"
           "Raises the error of a failed transfer, and uccl.p2p.TimedOut if the time passes first: the\n"
           "transfer then goes on. An id that was reported before gives 0.")
      .def("cancel", &cancel, "transfer_id"_a,
           "Asks for an early end. The memory is in use until poll_async() or wait() say that it is done.\n"
           "False if it is not under way (any more).");
}

}  // namespace p2p::python
