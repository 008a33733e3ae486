// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "p2p/result.h"

namespace p2p::perf {

/// What this machine does without an engine.
struct Baseline {
  std::string name;  ///< for programs: "tcp_stream"
  std::string text;  ///< for people
  double value = 0;
  std::string unit;  ///< "GB/s" or "us"
};

// Names of the figures that the engine is compared with.
inline constexpr std::string_view kTcpStream = "tcp_stream";
inline constexpr std::string_view kTcpBlocks4K = "tcp_blocks_4k";
inline constexpr std::string_view kTcpBlocks16K = "tcp_blocks_16k";
inline constexpr std::string_view kTcpRoundTrip = "tcp_round_trip_4k";
inline constexpr std::string_view kProcessCopy = "process_vm_writev";
inline constexpr std::string_view kProcessCopyBlocks = "process_vm_writev_blocks";
inline constexpr std::string_view kMemcpy = "memcpy";

/// Measures everything, in about six seconds. Forks, so no other thread may run.
Result<std::vector<Baseline>> measure_baselines();

// The parts, for measure_baselines.
Result<std::vector<Baseline>> measure_sockets();
Result<std::vector<Baseline>> measure_copies();

/// One line for programs.
std::string to_json(const Baseline& figure);

/// Shows the figures on standard output, one a line, or as one JSON object a line in `json_path`.
Status run_baseline(const std::string& json_path);

/// The figures from another process: this one may have threads.
Result<std::vector<Baseline>> baselines_of_child();

}  // namespace p2p::perf
