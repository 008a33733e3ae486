// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "world.h"

namespace p2p::chaos {

/// How long a run goes on: so many times, or until then.
struct Extent {
  std::uint64_t times = 0;
  std::chrono::steady_clock::time_point end;
  std::chrono::milliseconds longest_stop{1000};

  bool over(std::uint64_t done) const { return done >= times || std::chrono::steady_clock::now() >= end; }
};

/// Awake, because it is about microseconds.
void pause_for(std::chrono::microseconds time);

/// What became of the operations, for the line that a run returns.
std::string counted(const World& world);

/// What ends with the trouble that was made: operations, connections, and the fence; then every byte is
/// looked at.
void end_all(World& world);

/// Within which what a worker's death or end stops is over.
std::chrono::milliseconds bound(const World& world);

void close_all(World& world, std::size_t connections);

/// Each returns what it did, one line. What is not as it must be throws std::runtime_error.

/// One worker is killed and starts again on the same port, in each phase of a connection.
std::string run_kill(World& world, const Extent& extent);

/// Operations are cancelled; their memory gets other bytes at once.
std::string run_cancel(World& world, const Extent& extent);

/// Workers are stopped and go on; nothing may fail.
std::string run_stop(World& world, const Extent& extent);

/// One worker closes its connections while the other stands still, and has its memory back before that goes
/// on, or dies, if it gets it.
std::string run_leave(World& world, const Extent& extent);

/// Sockets are cut, of channels, some or all, or of the session: nothing may fail.
std::string run_cut(World& world, const Extent& extent);

/// One rail after the other is dark or down for a while, and nothing may fail.
std::string run_rails(World& world, const Extent& extent);

/// The link between the workers is long, thin or lossy, each time otherwise, and nothing may fail.
std::string run_netem(World& world, const Extent& extent);

/// A worker may open no more files, at any moment of a connection.
std::string run_starve(World& world, const Extent& extent);

/// Memory turns bad, workers fork, are killed and start again, close and connect, regions are taken back and
/// come again, all at random: what meets bad memory fails with the cause, and nothing else fails.
std::string run_bad(World& world, const Extent& extent);

/// All operations over 8 connections, with regions that come and go. `times` are seconds.
std::string run_soak(World& world, const Extent& extent);

}  // namespace p2p::chaos
