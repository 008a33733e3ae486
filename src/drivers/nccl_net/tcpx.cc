// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/tcpx.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "drivers/nccl_net/abi/unpack.h"
#include "drivers/nccl_net/defaults.h"
#include "drivers/nccl_net/tcpxo.h"

namespace p2p::nccl_net {
namespace {

constexpr std::size_t kFragmentBytes = 4096;
// Of IPv4 and of TCP with its time stamps.
constexpr std::size_t kHeaderBytes = 52;
// A quarter of the list is for segments that were cut short.
constexpr std::size_t kFragments = abi::kUnpackEntries / 4 * 3;

ChunkLimit by_fragments(const Device& device, int mtu) {
  const std::size_t payload = static_cast<std::size_t>(mtu) - kHeaderBytes;
  const std::size_t in_packet = (payload + kFragmentBytes - 1) / kFragmentBytes;
  return {kFragments / in_packet * payload / kFragmentBytes * kFragmentBytes,
          fmt::format("the MTU of {} is {}, and a receive is listed as 2048 fragments at most",
                      device.label(), mtu)};
}

Result<ChunkLimit> by_tasks() {
  const auto task = positive_variable("NCCL_DYNAMIC_CHUNK_SIZE", 0);
  if (!task) return tl::unexpected(task.error());
  return ChunkLimit{*task, fmt::format("NCCL_DYNAMIC_CHUNK_SIZE is {}", *task)};
}

}  // namespace

bool is_tcpx(std::string_view plugin_name) { return plugin_name.starts_with("GPUDirectTCPX"); }

Result<std::uint64_t> positive_variable(const char* name, std::uint64_t fallback) {
  const auto text = plugin_variable(name);
  if (!text && fallback != 0) return fallback;
  std::uint64_t value = 0;
  if (text) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc{} || end != text->data() + text->size()) value = 0;
  }
  if (value != 0) return value;
  return fail(ErrorCode::kUnavailable, "{} is {}: it has to be a number of its own, from 1 on", name,
              text ? *text : "unset");
}

int mtu_of(const Device& device) {
  if (device.properties.name.empty()) return 0;
  std::ifstream file("/sys/class/net/" + device.properties.name + "/mtu");
  int mtu = 0;
  return file >> mtu ? mtu : 0;
}

Result<ChunkLimit> chunk_limit(const Plugin& plugin, const Device& device) {
  ChunkLimit limit{std::numeric_limits<std::size_t>::max(), ""};
  const int mtu = mtu_of(device);
  if (device.properties.unpacks() && mtu > static_cast<int>(kHeaderBytes)) limit = by_fragments(device, mtu);
  if (!is_tcpx(plugin.name())) return limit;
  auto tasks = by_tasks();
  if (!tasks) return tasks;
  return tasks->bytes < limit.bytes ? *tasks : limit;
}

Result<std::size_t> allowed_chunk(const Plugin& plugin, const Device& device, std::size_t wanted) {
  const auto limit = chunk_limit(plugin, device);
  if (!limit) return tl::unexpected(limit.error());
  if (wanted <= limit->bytes) return wanted;
  log(LogLevel::kWarning, "{}: messages of {} bytes instead of {}: {}", plugin.name(), limit->bytes, wanted,
      limit->why);
  return limit->bytes;
}

Status check_registers_cuda(const Plugin& plugin, const Device& device) {
  if (!is_tcpx(plugin.name()) || !device.properties.pci_path.empty()) return {};
  return fail(ErrorCode::kUnavailable,
              "{} registers CUDA memory by the PCI address of the NIC, and {} has none: it is no gVNIC",
              plugin.name(), device.label());
}

bool is_softnet(void* library) { return ::dlsym(library, "softnet_pool_in_host_memory") != nullptr; }

bool has_pool_in_host_memory(const Plugin& plugin) {
  void* const library = ::dlopen(plugin.path().c_str(), RTLD_LAZY | RTLD_NOLOAD);
  const bool has = library != nullptr && is_softnet(library);
  if (library != nullptr) ::dlclose(library);
  return has;
}

Status check_host_pool(const Plugin& plugin) {
  if (!is_gpudirect(plugin.name()) || has_pool_in_host_memory(plugin)) return {};
  return fail(ErrorCode::kUnavailable, "{} has no pool in host memory: name a CUDA device", plugin.name());
}

}  // namespace p2p::nccl_net
