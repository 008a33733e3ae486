// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "conformance/memory.h"
#include "transport/transport.h"

namespace p2p::conformance {

/// True where scripts/rdma_vm.sh says so: everything takes some ten times longer.
inline bool on_slow_machine() {
  const char* said =
      std::getenv("P2P_SLOW_MACHINE");  // NOLINT(concurrency-mt-unsafe): nothing here calls setenv
  return said != nullptr && *said != '\0';
}

/// Longer than anything here may take, also under a sanitizer on a busy machine.
inline const std::chrono::seconds kPatience{on_slow_machine() ? 180 : 30};

/// A transfer cut into batches and how each of them ended.
struct Job {
  std::vector<Segment> segments;
  std::vector<Batch> batches;
  std::vector<Status> outcomes;  ///< of the batch of the same index, once it has ended
  std::size_t ended = 0;

  /// The first failure.
  Status status() const;
};

/// One side: a transport, its channels, and the thread that alone calls them, sleeping on their ready_fd as
/// an engine would. Its calls may come from any other thread.
class Peer {
 public:
  using SendControl = std::function<void(std::uint32_t channel, Bytes message)>;

  explicit Peer(std::unique_ptr<Transport> transport);

  /// Destroys the channels, then checks that every batch ended exactly once.
  ~Peer();

  Transport& transport() { return *transport_; }

  /// Opens all channels of all rails towards 127.0.0.1. `setup.control` is replaced.
  Status open(const ChannelSetup& setup, SendControl send_control);
  std::vector<Bytes> addresses();
  Status connect(const std::vector<Bytes>& peer_addresses);

  /// What the other side's ControlLink was given.
  void deliver(std::uint32_t channel, Bytes message);

  /// Until all channels are ready; the error of the first that failed otherwise.
  Status wait_ready();

  /// Until all channels have failed; their state may be read then. False if that took too long.
  bool wait_failed(std::chrono::nanoseconds timeout = kPatience);
  Error channel_error();

  std::shared_ptr<RemoteKey> import(const RegionOffer& offer);

  /// Starts a transfer; batches go to whichever channel takes them.
  std::shared_ptr<Job> submit(Operation operation, std::vector<Segment> segments);

  /// False if that took too long.
  bool wait(const Job& job, std::chrono::nanoseconds timeout = kPatience);
  bool wait_started(const Job& job, std::size_t ended);

  /// The twin's thread is through with its turn. It may be in one still whose bytes have arrived long ago,
  /// and a sanitizer of threads notes only then that they were read.
  void await_twins_turn() {
    if (twin_ != nullptr) twin_->call([](auto&) {});
  }
  void set_twin(Peer& twin) { twin_ = &twin; }

  /// The outcome of a whole transfer.
  Status transfer(Operation operation, std::vector<Segment> segments);

  /// Runs `task` on the thread that calls the channels, and waits for it.
  void call(const std::function<void(std::vector<std::unique_ptr<Channel>>&)>& task);

  /// Hands the channels what `deliver` was given meanwhile. Only within `call`, for tasks that wait there.
  void take_deliveries() { run_tasks(); }

  /// Destroys the channels. Batches that had not ended are reported as kCancelled by the harness.
  void close();

  /// What an engine does when the session's connection ends: destroys the channels; what they held ends with
  /// kPeerGone.
  void end_session();

 private:
  struct Link;
  struct Posted {
    std::shared_ptr<Job> job;
    std::size_t index = 0;
  };

  void run();
  bool run_tasks();
  bool post_waiting();
  void take(std::vector<Completion>& completions);
  void end(const Posted& posted, Status status);
  void destroy_channels(const Error& why);
  void publish_states();
  void sleep();
  void wake();
  bool wait_for(std::chrono::nanoseconds timeout, const std::function<bool()>& condition);

  const std::unique_ptr<Transport> transport_;
  const UniqueFd wake_;
  Peer* twin_ = nullptr;  // in this process

  // Of the thread alone.
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<std::unique_ptr<Channel>> channels_;
  std::deque<Posted> waiting_;
  std::map<std::uint64_t, Posted> posted_;
  std::uint64_t last_batch_ = 0;

  std::mutex mutex_;  // what follows, and the outcomes in jobs
  std::condition_variable changed_;
  std::vector<std::function<void()>> tasks_;
  std::vector<ChannelState> states_;
  Error first_error_;
  std::string violation_;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace p2p::conformance
