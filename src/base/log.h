// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include "p2p/log.h"

namespace p2p {

bool log_enabled(LogLevel level);

/// Writes the line whatever its level. Use `log`.
void log_line(LogLevel level, std::string_view line);

/// Logs one line. Formats only if lines of `level` are written.
template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace p2p
