// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "p2p/log.h"

namespace p2p {

/// Writes a line of the program's own into the library's log, by the same level and sink.
P2P_API void write_log(LogLevel level, std::string_view line);

}  // namespace p2p
