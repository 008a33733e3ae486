// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "softnet/log.h"

#include <atomic>

namespace softnet {
namespace {
std::atomic<abi::Logger> current{nullptr};
}

void set_logger(abi::Logger logger) { current = logger; }

void log_line(int level, const std::string& line) {
  if (const abi::Logger logger = current) {
    logger(level, abi::kLogInit | abi::kLogNet, "softnet", 0, "softnet: %s", line.c_str());
  }
}

}  // namespace softnet
