// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "p2p/result.h"

namespace p2p {

/// Starts a thread of the engine, with all signals but those of faults blocked (they are for the
/// application's threads) and a `name` of at most 15 characters. kSystem if the system has no thread left.
Result<std::thread> start_thread(std::string name, std::function<void()> run);

/// True on a thread that `start_thread` started. Such a thread must not wait for the engine: it may be the
/// one that it waits for.
bool on_engine_thread();

}  // namespace p2p
