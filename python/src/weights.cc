// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "convert/errors.h"
#include "convert/options.h"
#include "gil.h"
#include "p2p/host_port.h"
#include "p2p/weights/publisher.h"
#include "p2p/weights/subscriber.h"
#include "state.h"

// What uccl.weights is made of. Any thread may call, and others run meanwhile.

namespace p2p::python {
namespace nb = nanobind;
using namespace nb::literals;
using namespace weights;
namespace {

using Numbers64 = std::vector<std::uint64_t>;

/// A publisher or subscriber that may be closed while calls are under way. The GIL guards the handle itself.
template <class T>
class Closable {
 public:
  explicit Closable(T made) : made_(std::make_shared<T>(std::move(made))) {}
  ~Closable() { close(); }
  Closable(const Closable&) = delete;
  Closable& operator=(const Closable&) = delete;

  std::shared_ptr<T> get() const {
    if (!made_) raise({ErrorCode::kNotFound, "This publisher or subscriber of weights is closed."});
    if (generation_ != fork_generation()) {
      raise(
          {ErrorCode::kUnavailable,
           "This publisher or subscriber of weights was made before fork(), and works in the parent alone."});
    }
    return made_;
  }
  bool closed() const { return !made_; }
  void close() {
    std::shared_ptr<T> made = std::exchange(made_, nullptr);
    if (!made) return;
    if (generation_ != fork_generation()) {
      new std::shared_ptr<T>(std::move(made));  // its threads live in the parent only, as those of endpoints
      return;
    }
    const Released released;
    made.reset();
  }

  /// `call(T&)` without the GIL.
  template <class Call>
  auto without_gil(Call&& call) const {
    auto made = get();
    const Released released;
    auto answer = call(*made);
    made.reset();  // it may be the last, and wait for peers
    return answer;
  }

 private:
  std::shared_ptr<T> made_;
  const std::uint64_t generation_ = fork_generation();
};
using PyPublisher = Closable<Publisher>;
using PySubscriber = Closable<Subscriber>;

template <class T>
std::string place_of(const Closable<T>& self) {
  return HostPort{self.get()->address(), self.get()->port()}.text();
}

std::chrono::nanoseconds whole(const Deadline& deadline) {
  return deadline ? *deadline - std::chrono::steady_clock::now() : std::chrono::hours(24 * 365);
}

/// Calls `wait(timeout)` in slices, between which signals are handled.
template <class Wait>
auto wait_sliced(std::optional<double> timeout, Wait&& wait) {
  const Deadline deadline = deadline_in(timeout);
  for (;;) {
    auto answer = wait(next_slice(deadline));
    if (answer || answer.error().code != ErrorCode::kTimedOut || passed(deadline)) {
      return value_or_raise(std::move(answer));
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

/// The fields of uccl.weights.Progress.
using Row = Tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                  std::uint64_t, std::uint64_t, std::string, std::string, double, double, double, double,
                  std::uint64_t, double, std::string>;

double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

Row row_of(const Progress& progress) {
  return nb::make_tuple(progress.version, progress.bytes, progress.total_bytes, progress.publisher_bytes,
                        progress.wrong_digests, progress.bridged, progress.delta_bytes, progress.from_deltas,
                        progress.no_delta, progress.from, seconds(progress.offered), seconds(progress.joined),
                        seconds(progress.first), seconds(progress.last), progress.given_bytes,
                        seconds(progress.waited), progress.waits_for);
}

/// A stage in a thread of its own, so that this one can look for signals and tell its caller.
Row stage(const PySubscriber& self, std::uint64_t version, const Manifest& wanted, bool in_place,
          std::optional<double> timeout, const nb::object& tell) {
  std::mutex mutex;
  Progress latest;
  std::atomic<bool> go_on{true};
  StageOptions options;
  options.in_place = in_place;
  options.timeout = whole(deadline_in(timeout));
  options.progress = [&](const Progress& progress) {
    const std::lock_guard lock(mutex);
    latest = progress;
    return go_on.load();
  };
  auto subscriber = self.get();
  auto staged = std::async(std::launch::async, [&] { return subscriber->stage(version, wanted, options); });
  struct End {  // the memory is the caller's again when this call returns
    std::atomic<bool>& go_on;
    std::future<Status>& staged;
    std::shared_ptr<Subscriber>& subscriber;
    std::uint64_t version;
    ~End() {
      go_on = false;
      const Released released;
      if (staged.valid()) take_back();
      subscriber.reset();  // it may be the last, and wait for peers
    }
    // The caller gave up, and the last bytes may have come meanwhile.
    void take_back() noexcept {
      try {
        if (staged.get()) static_cast<void>(subscriber->drop(version));
      } catch (const std::exception&) {  // nothing is staged
      }
    }
  };
  Status status;
  {
    const End end{go_on, staged, subscriber, version};
    for (bool done = false; !done;) {
      {
        const Released released;
        done = staged.wait_for(kSlice) == std::future_status::ready;
      }
      if (self.closed()) go_on = false;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      Progress now;
      {
        const std::lock_guard lock(mutex);
        now = latest;
      }
      if (!tell.is_none()) tell(row_of(now));
    }
    status = staged.get();
  }
  raise_unless(std::move(status));
  return row_of(latest);
}

void bind_manifest(nb::module_& module) {
  nb::class_<Manifest>(module, "WeightsManifest", "The tensors of one side, for uccl.weights.")
      .def(nb::init<>())
      .def(
          "add_tensor",
          [](Manifest& self, std::string name, std::string dtype, std::uint32_t bytes,
             const Numbers64& shape) {
            return value_or_raise(self.add_tensor(std::move(name), {std::move(dtype), bytes}, shape));
          },
          "name"_a, "dtype"_a, "element_bytes"_a, "shape"_a, "Adds a tensor; its number.")
      .def(
          "add_shard",
          [](Manifest& self, std::uint32_t tensor, std::uint64_t address, const Numbers64& offset,
             const Numbers64& size) { raise_unless(self.add_shard(tensor, {0, address, offset, size, {}})); },
          "tensor"_a, "address"_a, "offset"_a, "size"_a, "Adds a box of a tensor, row after row in memory.");
}

void bind_publisher(nb::module_& module) {
  nb::class_<PyPublisher>(module, "WeightsPublisher", "Offers versions, for uccl.weights.")
      .def("__init__",
           [](PyPublisher* self, const nb::kwargs& options) {
             const Options chosen = options_from(options);
             new (self) PyPublisher(value_or_raise(Publisher::create(chosen)));
           })
      .def_prop_ro("place", place_of<Publisher>, "host:port")
      .def(
          "publish",
          [](const PyPublisher& self, std::uint64_t version, const Manifest& owned,
             std::optional<std::uint64_t> base) {
            raise_unless(
                self.without_gil([&](Publisher& made) { return made.publish(version, owned, base); }));
          },
          "version"_a, "owned"_a, "base"_a = nb::none())
      .def(
          "withdraw",
          [](const PyPublisher& self, std::uint64_t version) {
            raise_unless(self.without_gil([&](Publisher& made) { return made.withdraw(version); }));
          },
          "version"_a)
      .def(
          "copies",
          [](const PyPublisher& self, std::uint64_t version) {
            return self.without_gil([&](Publisher& made) { return made.copies(version); });
          },
          "version"_a)
      .def(
          "wait_copies",
          [](const PyPublisher& self, std::uint64_t version, std::size_t count,
             std::optional<double> timeout) {
            wait_sliced(timeout, [&](std::chrono::nanoseconds slice) -> Result<bool> {
              const Status status =
                  self.without_gil([&](Publisher& made) { return made.wait_copies(version, count, slice); });
              if (!status) return tl::unexpected(status.error());
              return true;
            });
          },
          "version"_a, "count"_a, "timeout"_a = nb::none())
      .def("close", &PyPublisher::close);
}

void bind_subscriber(nb::module_& module) {
  nb::class_<PySubscriber>(module, "WeightsSubscriber", "Receives versions, for uccl.weights.")
      .def(
          "__init__",
          [](PySubscriber* self, std::vector<std::string> publishers, std::uint64_t chunk_bytes, double stall,
             const nb::kwargs& options) {
            SubscriberOptions chosen;
            chosen.endpoint = options_from(options);
            chosen.publishers = std::move(publishers);
            chosen.chunk_bytes = chunk_bytes;
            chosen.stall = std::chrono::duration_cast<std::chrono::milliseconds>(whole(deadline_in(stall)));
            new (self) PySubscriber(value_or_raise(Subscriber::create(chosen)));
          },
          "publishers"_a, "chunk_bytes"_a, "stall"_a, "options"_a)
      .def_prop_ro("place", place_of<Subscriber>, "host:port")
      .def(
          "wait_version",
          [](const PySubscriber& self, std::optional<std::uint64_t> above, std::optional<double> timeout) {
            return wait_sliced(timeout, [&](std::chrono::nanoseconds slice) {
              return self.without_gil([&](Subscriber& made) { return made.wait_version(above, slice); });
            });
          },
          "above"_a = nb::none(), "timeout"_a = nb::none())
      .def("stage", stage, "version"_a, "wanted"_a, "in_place"_a, "timeout"_a = nb::none(),
           "tell"_a = nb::none())
      .def("commit",
           [](const PySubscriber& self) {
             return value_or_raise(self.without_gil([](Subscriber& made) { return made.commit(); }));
           })
      .def("committed",
           [](const PySubscriber& self) {
             return self.without_gil([](Subscriber& made) { return made.committed(); });
           })
      .def(
          "drop",
          [](const PySubscriber& self, std::uint64_t version) {
            raise_unless(self.without_gil([&](Subscriber& made) { return made.drop(version); }));
          },
          "version"_a)
      .def("close", &PySubscriber::close);
}

}  // namespace

void bind_weights(nb::module_& module) {
  bind_manifest(module);
  bind_publisher(module);
  bind_subscriber(module);
}

}  // namespace p2p::python
