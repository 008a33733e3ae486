// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/verbs/device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "drivers/verbs/table.h"

namespace p2p::verbs {
namespace {

constexpr std::size_t kMostGids = 256;

// The list of devices, given back at the end of its scope; a device that was opened stays.
class DeviceList {
 public:
  explicit DeviceList(const Library& library)
      : library_(library), devices_(library.get_device_list(&count_)), error_(errno) {}
  ~DeviceList() {
    if (devices_ != nullptr) library_.free_device_list(devices_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  Status status() const {
    if (devices_ != nullptr) return {};
    // Without the kernel's part there are no devices.
    if (error_ == ENOSYS || error_ == ENOENT) {
      return fail(ErrorCode::kUnavailable, "the kernel has no RDMA devices (module ib_uverbs)");
    }
    return tl::unexpected<Error>(system_error("list RDMA devices", error_));
  }
  ibv_device** begin() const { return devices_; }
  ibv_device** end() const { return devices_ + count_; }

 private:
  const Library& library_;
  int count_ = 0;
  ibv_device** devices_;
  int error_;
};

unsigned bytes_of(ibv_mtu mtu) { return mtu < IBV_MTU_256 || mtu > IBV_MTU_4096 ? 256 : 128U << mtu; }

// In units of 2.5 Gb/s a lane, the codes of the specification.
double gigabits_of(unsigned speed, unsigned width) {
  double lane = 2.5;
  switch (speed) {
    case 2: lane = 5; break;
    case 4:
    case 8: lane = 10; break;
    case 16: lane = 14; break;
    case 32: lane = 25; break;
    case 64: lane = 50; break;
    case 128: lane = 100; break;
    default: break;
  }
  switch (width) {
    case 2: return 4 * lane;
    case 4: return 8 * lane;
    case 8: return 12 * lane;
    case 16: return 2 * lane;
    default: return lane;
  }
}

Event event_of(const Library& library, const ibv_async_event& event) {
  Event out{.text = library.event_type_str(event.event_type)};
  switch (event.event_type) {
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
      out.kind = event.event_type == IBV_EVENT_PORT_ERR ? EventKind::kPortDown : EventKind::kPortUp;
      out.port = static_cast<unsigned>(event.element.port_num);
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      out.kind = EventKind::kQueuePair;
      out.queue_pair = event.element.qp->qp_num;
      break;
    case IBV_EVENT_DEVICE_FATAL: out.kind = EventKind::kDeviceGone; break;
    default: break;
  }
  return out;
}

std::string place_of(const std::string& device) {
  std::error_code error;
  const auto place = std::filesystem::canonical("/sys/class/infiniband/" + device + "/device", error);
  return error ? std::string() : place.string();
}

int numa_node_of(const std::string& place) {
  int node = -1;
  if (!place.empty()) std::ifstream(place + "/numa_node") >> node;
  return node;
}

}  // namespace

bool Gid::is_ipv4() const {
  constexpr std::array<unsigned char, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(bytes.data(), kMapped.data(), kMapped.size()) == 0;
}

std::string Gid::text() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (is_ipv4()) {
    ::inet_ntop(AF_INET, bytes.data() + 12, text.data(), text.size());
  } else {
    ::inet_ntop(AF_INET6, bytes.data(), text.data(), text.size());
  }
  return text.data();
}

std::string Port::name() const { return fmt::format("{}:{}", device, number); }

std::vector<Event> EventWatch::take() {
  MutexLock lock(mutex_);
  eventfd_t ignored = 0;
  ::eventfd_read(fd_.get(), &ignored);
  return std::exchange(events_, {});
}

void EventWatch::put(const Event& event) {
  MutexLock lock(mutex_);
  events_.push_back(event);
  ::eventfd_write(fd_.get(), 1);
}

Result<std::vector<std::string>> Device::list(const Library& library) {
  const DeviceList devices(library);
  if (const Status listed = devices.status(); !listed) return tl::unexpected<Error>(listed.error());
  std::vector<std::string> names;
  for (ibv_device* device : devices) names.emplace_back(library.get_device_name(device));
  return names;
}

Result<std::shared_ptr<Device>> Device::open(const Library& library, const std::string& name) {
  const DeviceList devices(library);
  if (const Status listed = devices.status(); !listed) return tl::unexpected<Error>(listed.error());
  const auto found = std::find_if(devices.begin(), devices.end(), [&](ibv_device* candidate) {
    return name == library.get_device_name(candidate);
  });
  if (found == devices.end()) return fail(ErrorCode::kNotFound, "open RDMA device {}: there is none", name);
  const std::shared_ptr<Device> device(new Device(library, name));
  device->context_ = library.open_device(*found);
  if (device->context_ == nullptr) {
    return tl::unexpected<Error>(system_error(fmt::format("open RDMA device {}", name)));
  }
  ::fcntl(device->event_fd(), F_SETFL, ::fcntl(device->event_fd(), F_GETFL) | O_NONBLOCK);
  device->domain_ = library.alloc_pd(device->context_);
  if (device->domain_ == nullptr) {
    return tl::unexpected<Error>(system_error(fmt::format("make a protection domain on {}", name)));
  }
  device->place_ = place_of(name);
  device->numa_node_ = numa_node_of(device->place_);
  ibv_device_attr attributes{};
  if (const int error = library.query_device(device->context_, &attributes); error != 0) {
    return tl::unexpected<Error>(system_error(fmt::format("ask RDMA device {} for its limits", name), error));
  }
  const auto positive = [](int value) { return static_cast<unsigned>(std::max(value, 0)); };
  device->limits_ = {.ports = attributes.phys_port_cnt,
                     .requests = positive(attributes.max_qp_wr),
                     .pieces = positive(attributes.max_sge),
                     .completions = positive(attributes.max_cqe),
                     .reads_out = positive(attributes.max_qp_init_rd_atom),
                     .reads_in = positive(attributes.max_qp_rd_atom)};
  return device;
}

Device::~Device() {
  if (domain_ != nullptr) library_.dealloc_pd(domain_);
  if (context_ != nullptr) library_.close_device(context_);
}

Result<Port> Device::port(unsigned number) const {
  ibv_port_attr attributes{};
  const auto code = static_cast<std::uint8_t>(number);
  if (const int error =
          library_.query_port(context_, code, reinterpret_cast<_compat_ibv_port_attr*>(&attributes));
      error != 0) {
    return tl::unexpected<Error>(system_error(fmt::format("ask for port {}:{}", name_, number), error));
  }
  Port port{.device = name_,
            .number = number,
            .active = attributes.state == IBV_PORT_ACTIVE,
            .ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET,
            .mtu = bytes_of(attributes.active_mtu),
            .lid = attributes.lid,
            .gigabits = gigabits_of(attributes.active_speed, attributes.active_width),
            .gids = {}};
  std::vector<ibv_gid_entry> entries(kMostGids);
  const ssize_t count =
      library_.query_gid_table(context_, entries.data(), entries.size(), 0, sizeof entries.front());
  if (count < 0) {
    return tl::unexpected<Error>(
        system_error(fmt::format("read the addresses of {}", name_), static_cast<int>(-count)));
  }
  entries.resize(static_cast<std::size_t>(count));
  for (const ibv_gid_entry& entry : entries) {
    if (entry.port_num != number) continue;
    Gid gid{.index = entry.gid_index};
    std::memcpy(gid.bytes.data(), entry.gid.raw, gid.bytes.size());
    gid.kind = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? GidKind::kRoceV2
               : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? GidKind::kRoceV1
                                                        : GidKind::kInfiniBand;
    port.gids.push_back(gid);
  }
  return port;
}

int Device::event_fd() const { return context_->async_fd; }

void Device::fetch_events() {
  MutexLock lock(mutex_);
  ibv_async_event raw{};
  while (library_.get_async_event(context_, &raw) == 0) {
    const Event event = event_of(library_, raw);
    library_.ack_async_event(&raw);
    for (const auto& weak : watches_) {
      if (const auto watch = weak.lock()) watch->put(event);
    }
  }
}

Result<std::shared_ptr<EventWatch>> Device::watch() {
  UniqueFd fd = UniqueFd::of(::eventfd, 0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (!fd) return tl::unexpected<Error>(system_error(fmt::format("watch RDMA device {}: eventfd", name_)));
  std::shared_ptr<EventWatch> watch(new EventWatch(std::move(fd)));
  MutexLock lock(mutex_);
  std::erase_if(watches_, [](const auto& weak) { return weak.expired(); });
  watches_.push_back(watch);
  return watch;
}

}  // namespace p2p::verbs
