// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "p2p/memory.h"
#include "p2p/result.h"
#include "p2p/stats.h"
#include "p2p/transfer.h"
#include "spread.h"

namespace p2p::perf {

enum class Operation { kWrite, kRead, kSend, kNotify };

std::string_view to_string(Operation operation);
Result<Operation> parse_operation(std::string_view text);
std::string_view to_string(Priority priority);
Result<Priority> parse_priority(std::string_view text);

/// One line of the table: what is measured.
struct Row {
  Operation operation = Operation::kWrite;
  std::string transport;     ///< empty: the engine chooses
  unsigned streams = 0;      ///< 0: the engine chooses
  std::uint64_t size = 0;    ///< bytes of a block
  std::uint64_t blocks = 1;  ///< of a transfer
  std::uint64_t depth = 1;   ///< transfers in flight
  std::chrono::milliseconds duration{1000};
  std::chrono::milliseconds pause{0};  ///< before each of the first ten transfers
  bool awake = false;                  ///< other memory is copied until the first transfer
  bool verify = true;
  bool prepared = false;
  Priority priority = Priority::kNormal;  ///< of writes and reads
  std::uint64_t rate = 0;                 ///< of each of them, bytes a second; 0: no bound
  bool digest = false;                    ///< PostOptions::verify
  std::uint64_t beside = 0;               ///< bytes of each bulk transfer (beside.h); 0: none
  std::uint64_t seed = 0;                 ///< of this row's patterns and places

  std::uint64_t transfer_bytes() const { return size * blocks; }
};

/// Refuses rows that no machine or no tester can want, so that a layout's sums cannot overflow.
Status check(const Row& row);

/// Receives that the server keeps posted: enough that a sender never waits for one.
inline std::uint64_t receives_ahead(const Row& row) { return 2 * row.depth; }

/// What a row gave.
struct Figures {
  Explanation taken;  ///< which transport moved the bytes, and why none that is preferred to it
  std::uint64_t transfers = 0;
  double seconds = 0;
  Spread spread;  ///< GB/s of rounds of transfers, one after the other
  double latency_us_p50 = 0;
  double latency_us_p99 = 0;
  double post_us = 0;   ///< median time to post one transfer
  double first_us = 0;  ///< of the first transfer between these regions, from post to done, after Row::pause
                        ///< or behind the copies of Row::awake
  double tenth_us = 0;  ///< of the tenth, likewise
  double beside_gbytes_per_second = 0;  ///< of the bulk transfers meanwhile
  MemoryKind remote = MemoryKind::kHost;
  bool verified = false;
  std::string fault;  ///< what was wrong at the destination
  Stats stats;        ///< of the connection, since it was made

  double gbytes_per_second(const Row& row) const;
  double messages_per_second() const;
};

}  // namespace p2p::perf
