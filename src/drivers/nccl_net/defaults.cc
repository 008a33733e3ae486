// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/defaults.h"

#include <cstdlib>
#include <filesystem>

#include "base/log.h"

namespace p2p::nccl_net {
namespace {

constexpr const char* kReceiveManager = "/run/tcpx";

struct Default {
  const char* variable;
  const char* value;
  const char* why;
};

constexpr Default kDefaults[] = {
    {"NCCL_DYNAMIC_CHUNK_SIZE", "524288", "unset means 0, and no byte would ever move"},
    {"NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS", "1000000", "each accept would wait 5 s"},
    {"NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX", kReceiveManager, "the sockets of RxDM are there"},
};

}  // namespace

void set_plugin_defaults(std::string_view plugin_name) {
  if (!plugin_name.starts_with("GPUDirectTCPX")) return;
  for (const Default& setting : kDefaults) {
    std::error_code error;
    if (setting.value == kReceiveManager && !std::filesystem::is_directory(kReceiveManager, error)) continue;
    if (std::getenv(setting.variable) != nullptr) continue;
    // The plugin reads its environment when it is opened, right after this, and nowhere else can it be told.
    ::setenv(setting.variable, setting.value, 1);  // NOLINT(concurrency-mt-unsafe)
    log(LogLevel::kWarning, "{} is unset; using {}: {}", setting.variable, setting.value, setting.why);
  }
}

}  // namespace p2p::nccl_net
