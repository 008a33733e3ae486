// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>

namespace p2p::engine {

/// Connections whose peer has not proven who it is yet ("strangers"), bounded in all and for each address.
/// When a bound is reached one of the address in question, or of the address with the most, is closed: the
/// oldest that is past its time for first bytes and has sent none; else the oldest that is past its time for
/// the proof; else the oldest whose first proof was not yet found right; else the oldest. One thread.
class Strangers {
 public:
  using Clock = std::chrono::steady_clock;
  using Id = std::uint64_t;
  using Drop = std::function<void(Id)>;  ///< closes the connection

  struct Limits {
    std::size_t all = 0;
    std::size_t of_one_address = 0;
  };

  /// How long a good peer takes at most for its first bytes, and from then on for each step of its proof.
  static constexpr std::chrono::milliseconds kFirstBytes{20};
  static constexpr std::chrono::milliseconds kProof{200};

  explicit Strangers(Limits limits) : limits_(limits) {}

  Id add(const std::string& address, Clock::time_point now, Drop drop);

  /// Its first bytes have come; `drop` closes it from now on.
  void spoke(Id id, Clock::time_point now, Drop drop);

  /// The first step of its proof was right: it gets kProof for the rest.
  void answered(Id id, Clock::time_point now);

  /// It has said who it is, without proof: it gets kProof to open a channel.
  void introduced(Id id, Clock::time_point now);

  /// It has proven itself or is gone.
  void remove(Id id);

  /// Closes the oldest of those that are least far with their proof; false if there is none.
  bool drop_one();

  std::size_t size() const { return entries_.size(); }

  /// How many were closed here, or counted by `count_refused`. Any thread.
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  void count_refused() { refused_.fetch_add(1, std::memory_order_relaxed); }

 private:
  enum class Progress { kSilent, kSpoke, kAnswered };
  struct Entry {
    std::string address;
    Clock::time_point due;  ///< until when it has time for its next step
    Drop drop;
    Progress progress = Progress::kSilent;
  };
  using Entries = std::map<Id, Entry>;  // in the order in which they came

  Entry* advance(Id id, Progress progress, Clock::time_point now);
  void make_room(const std::string& address, Clock::time_point now);
  std::string busiest_address() const;
  void evict(Entries::iterator entry);
  Drop take(Entries::iterator entry);

  const Limits limits_;
  Entries entries_;
  std::unordered_map<std::string, std::size_t> of_address_;
  Id next_ = 1;
  std::atomic<std::uint64_t> refused_{0};
};

}  // namespace p2p::engine
