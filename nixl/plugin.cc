// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <string>
#include <string_view>

#include "backend.h"
#include "host.h"
#include "p2p/write_log.h"
#include "parameters.h"

// What NIXL looks up in libplugin_TCPX.so. Called several times in a process, also just to read the options:
// nothing starts before an engine is made.
namespace p2p::nixl {
namespace {

nixlBackendEngine* create_engine(const nixlBackendInitParams* init) {
  return init == nullptr ? nullptr : new Backend(*init);
}

void destroy_engine(nixlBackendEngine* engine) { delete engine; }

/// The name that it was installed by: that of the file.
const char* plugin_name() {
  static const std::string name = [] {
    Dl_info info{};
    const bool found = dladdr(reinterpret_cast<const void*>(&create_engine), &info) != 0;
    const std::string path = found && info.dli_fname != nullptr ? info.dli_fname : "";
    constexpr std::string_view kPrefix = "libplugin_";
    const std::size_t begin = path.rfind(kPrefix);
    const std::size_t end = path.rfind(".so");
    if (begin == std::string::npos || end == std::string::npos || end < begin) return std::string("TCPX");
    return path.substr(begin + kPrefix.size(), end - begin - kPrefix.size());
  }();
  return name.c_str();
}

const char* plugin_version() { return P2P_VERSION; }
nixl_mem_list_t plugin_memories() { return {DRAM_SEG, VRAM_SEG}; }

nixlBackendPlugin plugin{
    .api_version = kNixlPluginApiVersion,
    .create_engine = create_engine,
    .destroy_engine = destroy_engine,
    .get_plugin_name = plugin_name,
    .get_plugin_version = plugin_version,
    .get_backend_options = known_parameters,
    .get_backend_mems = plugin_memories,
};

}  // namespace
}  // namespace p2p::nixl

extern "C" {

__attribute__((visibility("default"))) nixlBackendPlugin* nixl_plugin_init() {
  if (const p2p::Status host = p2p::nixl::check_host(__builtin_return_address(0)); !host) {
    p2p::write_log(p2p::LogLevel::kError, host.error().message);
    return nullptr;
  }
  return &p2p::nixl::plugin;
}

__attribute__((visibility("default"))) void nixl_plugin_fini() {}

}  // extern "C"
