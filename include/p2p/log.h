// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "p2p/api.h"

namespace p2p {

enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError, kOff };

/// Lines below `level` are dropped. Default: kWarning, or UCCL_P2P_LOG_LEVEL.
P2P_API void set_log_level(LogLevel level);

/// Sends every line to `sink` instead of standard error; null restores it. `sink` is called from any thread.
P2P_API void set_log_sink(std::function<void(LogLevel, std::string_view)> sink);

}  // namespace p2p
