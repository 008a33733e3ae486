// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/defaults.h"

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>

#include "base/log.h"
#include "base/mutex.h"
#include "drivers/nccl_net/tcpx.h"

namespace p2p::nccl_net {
namespace {

struct Default {
  const char* variable;
  const char* value;
  const char* why;
};

constexpr Default kDefaults[] = {
    {"NCCL_DYNAMIC_CHUNK_SIZE", "524288", "unset means 0, and no byte would ever move"},
    {"NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS", "1000000", "each accept would wait 5 s"},
    {"NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX", kReceiveManagerFolder, "the sockets of RxDM are there"},
};

/// What was set here; never destroyed, as plugins are not.
struct SetHere {
  Mutex mutex;
  std::set<std::string, std::less<>> names P2P_GUARDED_BY(mutex);
};

SetHere& set_here() {
  static SetHere* const all = new SetHere;
  return *all;
}

}  // namespace

std::optional<std::string> plugin_variable(const char* name) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): see set_plugin_defaults
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::optional<std::string> users_variable(const char* name) {
  const MutexLock lock(set_here().mutex);
  if (set_here().names.contains(name)) return std::nullopt;
  return plugin_variable(name);
}

void set_plugin_defaults(std::string_view plugin_name) {
  if (!is_tcpx(plugin_name)) return;
  const MutexLock lock(set_here().mutex);
  for (const Default& setting : kDefaults) {
    std::error_code error;
    if (setting.value == kReceiveManagerFolder &&
        !std::filesystem::is_directory(kReceiveManagerFolder, error))
      continue;
    if (plugin_variable(setting.variable)) continue;
    // The plugin reads its environment when it is opened, right after this, and nowhere else can it be told.
    ::setenv(setting.variable, setting.value, 1);  // NOLINT(concurrency-mt-unsafe)
    set_here().names.emplace(setting.variable);
    log(LogLevel::kWarning, "{} is unset; using {}: {}", setting.variable, setting.value, setting.why);
  }
}

}  // namespace p2p::nccl_net
