// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/rdma/fabric.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/place.h"
#include "transport/rdma/region.h"

namespace p2p::rdma {
namespace {

constexpr std::size_t kScratchBytes = 64;

// `wanted` is "mlx5_0" or "mlx5_0:1".
bool selects(const std::string& wanted, const std::string& device, unsigned port) {
  return wanted == device || wanted == fmt::format("{}:{}", device, port);
}

// Leaves the port those GIDs by which it may be named.
Status narrow(verbs::Port& port, const RdmaOptions& options) {
  if (options.mtu > port.mtu) {
    return fail(ErrorCode::kUnavailable, "{} has an MTU of {} bytes, not {}", port.name(), port.mtu,
                options.mtu);
  }
  if (options.mtu != 0) port.mtu = options.mtu;
  if (options.gid_index < 0) return {};
  std::erase_if(port.gids,
                [&](const verbs::Gid& gid) { return gid.index != static_cast<unsigned>(options.gid_index); });
  if (!port.gids.empty()) return {};
  return fail(ErrorCode::kUnavailable, "{} has no GID {}", port.name(), options.gid_index);
}

std::vector<std::string> gpu_places() {
  std::vector<std::string> places;
  for (const int device : cuda::active_devices()) {
    const auto id = cuda::bus_id_of(device);
    std::error_code error;
    if (!id) continue;
    const auto place = std::filesystem::canonical("/sys/bus/pci/devices/" + *id, error);
    if (!error) places.push_back(place.string());
  }
  return places;
}

}  // namespace

std::size_t shared_folders(const std::string& left, const std::string& right) {
  std::size_t folders = 0;
  for (std::size_t i = 0;; ++i) {
    const bool left_ends = i == left.size() || left[i] == '/';
    const bool right_ends = i == right.size() || right[i] == '/';
    if (left_ends && right_ends && i != 0) ++folders;
    if (i >= left.size() || i >= right.size() || left[i] != right[i]) return folders;
  }
}

std::vector<const Nic*> nearest(std::vector<NicPlace> places, const std::vector<std::string>& gpus) {
  const auto shared = [&](const NicPlace& place) {
    std::size_t most = 0;
    for (const std::string& gpu : gpus) most = std::max(most, shared_folders(gpu, place.folder));
    return most;
  };
  std::size_t most = 0;
  for (const NicPlace& place : places) most = std::max(most, shared(place));
  std::erase_if(places, [&](const NicPlace& place) { return shared(place) != most; });
  // Those of one distance stay in their order, which is that of their addresses.
  std::ranges::sort(places, {}, [](const NicPlace& place) { return std::pair(place.distance, place.nic); });
  std::vector<const Nic*> nics;
  nics.reserve(places.size());
  for (const NicPlace& place : places) nics.push_back(place.nic);
  return nics;
}

int numa_distance(int node) {
  unsigned cpu = 0;
  unsigned here = 0;
  if (node < 0 || ::getcpu(&cpu, &here) != 0) return 0;
  std::ifstream distances(fmt::format("/sys/devices/system/node/node{}/distance", here));
  int distance = 0;
  for (int i = 0; i <= node; ++i) distances >> distance;
  return distances ? distance : 0;
}

Result<std::shared_ptr<const Fabric>> Fabric::open(const verbs::Library& library,
                                                   const RdmaOptions& options) {
  const auto names = verbs::Device::list(library);
  if (!names) return tl::unexpected(names.error());
  if (names->empty()) return fail(ErrorCode::kUnavailable, "this machine has no RDMA device");
  auto fabric = std::make_shared<Fabric>();
  for (const std::string& name : *names) {
    if (fabric->devices_.size() == kMaxDevices) break;
    if (const Status added = fabric->add_ports(library, name, options); !added) {
      return tl::unexpected(added.error());
    }
  }
  for (const std::string& wanted : options.devices) {
    const bool found = std::ranges::any_of(
        fabric->nics_, [&](const Nic& nic) { return selects(wanted, nic.port.device, nic.port.number); });
    if (!found) {
      return fail(ErrorCode::kUnavailable, "no RDMA port '{}' is active; there are the devices {}", wanted,
                  fmt::join(*names, ", "));
    }
  }
  if (fabric->nics_.empty()) {
    return fail(ErrorCode::kUnavailable, "no port of the RDMA devices {} is active", fmt::join(*names, ", "));
  }
  fabric->scratch_ = std::make_unique<std::byte[]>(kScratchBytes);
  for (const auto& device : fabric->devices_) {
    auto region = verbs::MemoryRegion::add(device, fabric->scratch_.get(), kScratchBytes);
    if (!region) return tl::unexpected(region.error());
    fabric->scratch_regions_.push_back(std::move(*region));
  }
  return fabric;
}

Status Fabric::add_ports(const verbs::Library& library, const std::string& name, const RdmaOptions& options) {
  const bool wanted = options.devices.empty() || std::ranges::any_of(options.devices, [&](const auto& each) {
                        return each == name || each.starts_with(name + ":");
                      });
  if (!wanted) return {};
  auto device = verbs::Device::open(library, name);
  if (!device) return tl::unexpected(device.error());
  bool used = false;
  for (unsigned number = 1; number <= (*device)->limits().ports; ++number) {
    const bool selected =
        options.devices.empty() ||
        std::ranges::any_of(options.devices, [&](const auto& each) { return selects(each, name, number); });
    if (!selected) continue;
    auto port = (*device)->port(number);
    if (!port) return tl::unexpected(port.error());
    if (!port->active) continue;
    if (const Status fits = narrow(*port, options); !fits) return fits;
    nics_.push_back({devices_.size(), std::move(*port), (*device)->numa_node()});
    used = true;
  }
  if (used) devices_.push_back(std::move(*device));
  return {};
}

std::vector<const Nic*> Fabric::nics() const {
  std::vector<NicPlace> places;
  for (const Nic& nic : nics_) {
    const verbs::Device& device = *devices_[nic.device];
    const auto now = device.port(nic.port.number);
    if (now && now->active) places.push_back({&nic, device.place(), numa_distance(nic.numa_node)});
  }
  return nearest(std::move(places), gpu_places());
}

const Nic* Fabric::find(const std::string& name) const {
  const auto found = std::ranges::find_if(nics_, [&](const Nic& nic) { return nic.port.name() == name; });
  return found == nics_.end() ? nullptr : &*found;
}

}  // namespace p2p::rdma
