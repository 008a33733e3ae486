// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <string>
#include <system_error>

#include "drivers/nccl_net/abi/types.h"

namespace softnet {

namespace abi = p2p::nccl_net::abi;

void set_logger(abi::Logger logger);
void log_line(int level, const std::string& line);

template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  log_line(abi::kLogWarn, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void inform(fmt::format_string<Args...> format, Args&&... args) {
  log_line(abi::kLogInfo, fmt::format(format, std::forward<Args>(args)...));
}

/// What the system says of an errno.
inline std::string reason(int error_number) { return std::generic_category().message(error_number); }

}  // namespace softnet
