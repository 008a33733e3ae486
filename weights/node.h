// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "message.h"
#include "p2p/endpoint.h"
#include "pieces.h"
#include "samples.h"

namespace p2p::weights {

/// Ends a wait of a node's thread early. Shared with callbacks of transfers, which may come after the node.
class Wake {
 public:
  void ring();
  /// Until it has rung since the last wait; false: it has not.
  bool wait(std::chrono::nanoseconds most);

 private:
  std::mutex mutex_;
  std::condition_variable rang_;
  bool ringing_ = false;
};

/// Of the steady clock; the longest times that callers may give overflow it.
inline std::chrono::steady_clock::time_point deadline_of(std::chrono::nanoseconds timeout) {
  return std::chrono::steady_clock::now() +
         std::min<std::chrono::nanoseconds>(timeout, std::chrono::hours(24 * 365));
}

/// A connection to another member.
struct Link {
  Connection connection;
  Member peer;  ///< its id is 0 until it is open, where it was not known before
  bool open = false;
  bool lost = false;  ///< for good
  std::string why{};  ///< it is lost
};
using LinkPtr = std::shared_ptr<Link>;

/// An endpoint whose peers are members: what publishers and subscribers have in common. One thread takes
/// what comes and calls the hooks; hooks and members run with `mutex_` held.
class Node {
 public:
  Endpoint& endpoint() { return endpoint_; }
  GpuRegions& gpu_regions() { return gpu_regions_; }
  const std::shared_ptr<Wake>& wake() const { return wake_; }
  const Member& self() const { return self_; }

  /// The live link to a member; a new one where there is none.
  LinkPtr dial(const Member& to);
  /// The live and open link to a member, or null.
  LinkPtr link_to(std::uint64_t id) const;
  void send(const LinkPtr& link, const Message& message) const;
  void send_all(const Message& message) const;

 protected:
  explicit Node(Endpoint endpoint);
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  virtual ~Node() = default;

  void start();
  /// No hook runs after it. A derived class calls it before its members end.
  void stop();

  virtual void on_open(const LinkPtr& link) = 0;
  virtual void on_lost(const LinkPtr& link) = 0;
  virtual void on_message(const LinkPtr& link, Message message) = 0;
  /// What is due. True: there is more, at once.
  virtual bool step() = 0;
  /// For those who watch; on any thread, with `mutex_` held.
  virtual void tell(Samples& samples) = 0;
  /// Whether to look for messages often.
  virtual bool busy() const { return false; }

  mutable std::mutex mutex_;
  std::condition_variable changed_;  ///< after each turn of the thread

 private:
  void run();
  bool turn();
  void accept();
  void watch(const Link& link) const;
  bool poll(const LinkPtr& link);
  void opened(const LinkPtr& link);
  void refuse(const LinkPtr& link, const std::string& note);
  void lose(const LinkPtr& link, const std::string& why);

  Endpoint endpoint_;
  GpuRegions gpu_regions_;
  Member self_;
  std::shared_ptr<Wake> wake_ = std::make_shared<Wake>();
  std::vector<LinkPtr> links_;
  AddedMetrics metrics_;
  bool warned_ = false;  // of a peer that is no member
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace p2p::weights
