// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "p2p/result.h"
#include "tcpx/session.h"

namespace tcpx::tool {

/// What both sides do; the client's values count, and the server gets them from it.
struct Plan {
  enum class Kind { kConnect, kTransfer, kPerf };
  Kind kind = Kind::kConnect;
  unsigned channels = 2;
  std::uint64_t chunk_bytes = TcpxOptions{}.chunk_bytes;
  unsigned window = TcpxOptions{}.window;
  std::vector<std::uint64_t> sizes;  ///< bytes of each message
  TcpxOptions::Unpack unpack = TcpxOptions::Unpack::kKernel;
  unsigned rounds = 10;  ///< messages timed for each size, after two that are not
  unsigned threads = 1;  ///< of each side, each with a session of its own; `channels` are dealt to them

  std::string encode() const;
  static p2p::Result<Plan> decode(const std::string& text);
};

/// What each side has of its own.
struct Place {
  std::string plugin;
  std::vector<int> devices;
  int gpu = -1;      ///< CUDA device whose memory is moved; -1: host memory
  std::string host;  ///< empty: this is the server
  std::uint16_t port = 0;
  std::chrono::seconds timeout{30};
  bool json = false;
  bool host_pool = false;  ///< host memory is registered as a device's would be
  bool times = false;      ///< of every message
};

/// Runs one side; prints the results. The error says which step failed.
p2p::Status run(const Place& place, const Plan& plan);

/// Prints the plugin, its devices and the checks, with those of tcpx::probe if asked. False if a check is bad
/// or no plugin opens.
bool show_discovery(const std::string& plugin, bool json, bool probing);

}  // namespace tcpx::tool
