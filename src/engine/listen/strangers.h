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

/// Who has connected and not proven himself yet: so many in all, and of one address. Where there is no room
/// one of the address with the most of them goes: the oldest that has said nothing and had the time to, else
/// the oldest that spoke and had the time to prove itself, else the oldest that has not been answered, else
/// the oldest. One thread.
class Strangers {
 public:
  using Clock = std::chrono::steady_clock;
  using Id = std::uint64_t;
  using Drop = std::function<void(Id)>;  ///< sends it off

  struct Limits {
    std::size_t all = 0;
    std::size_t of_one_address = 0;
  };

  /// In which a rightful peer says its first messages, and proves itself after them.
  static constexpr std::chrono::milliseconds kFirstWords{20};
  static constexpr std::chrono::milliseconds kProof{200};

  explicit Strangers(Limits limits) : limits_(limits) {}

  Id add(const std::string& address, Clock::time_point now, Drop drop);

  /// It has begun to speak; `drop` is what sends it off from here on.
  void spoke(Id id, Clock::time_point now, Drop drop);

  /// What it has shown was right so far: it has the time for the rest.
  void answered(Id id, Clock::time_point now);

  /// It has proven itself or is gone.
  void remove(Id id);

  /// Sends off one that has come least far, the oldest of those; false if there is none.
  bool drop_one();

  std::size_t size() const { return entries_.size(); }

  /// Sent off, or counted by others. Any thread.
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  void count_refused() { refused_.fetch_add(1, std::memory_order_relaxed); }

 private:
  enum class Progress { kSilent, kSpoke, kAnswered };
  struct Entry {
    std::string address;
    Clock::time_point due;  ///< when it has had its time
    Drop drop;
    Progress progress = Progress::kSilent;
  };
  using Entries = std::map<Id, Entry>;  // in the order in which they came

  Entry* come_on(Id id, Progress progress, Clock::time_point now);
  void make_room(const std::string& address, Clock::time_point now);
  std::string busiest_address() const;
  void send_off(Entries::iterator entry);
  Drop take(Entries::iterator entry);

  const Limits limits_;
  Entries entries_;
  std::unordered_map<std::string, std::size_t> of_address_;
  Id next_ = 1;
  std::atomic<std::uint64_t> refused_{0};
};

}  // namespace p2p::engine
