// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace p2p {

/// Runs a callback of the application. What it throws is logged and ends here: it is nobody's error but the
/// callback's own.
void run_callback(const std::function<void()>& callback);

/// True on a thread of the engine, and on any other one within `run_callback`. There nothing may be waited
/// for that waits for engine threads or for calls that have not returned.
bool in_callback();

}  // namespace p2p
