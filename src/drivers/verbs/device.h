// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "drivers/verbs/library.h"
#include "p2p/result.h"

struct ibv_context;
struct ibv_pd;

namespace p2p::verbs {

enum class GidKind : std::uint8_t { kInfiniBand, kRoceV1, kRoceV2 };

/// One of a port's addresses.
struct Gid {
  std::array<std::byte, 16> bytes{};
  unsigned index = 0;  ///< in the port's table
  GidKind kind = GidKind::kInfiniBand;

  bool is_ipv4() const;      ///< an IPv4 address in its mapped form
  std::string text() const;  ///< "10.0.0.1", "fe80::1"
};

/// What a port was like when asked.
struct Port {
  std::string device;
  unsigned number = 1;
  bool active = false;
  bool ethernet = false;  ///< RoCE, which is addressed by GID alone; else InfiniBand
  unsigned mtu = 0;       ///< bytes
  std::uint16_t lid = 0;
  double gigabits = 0;  ///< per second
  std::vector<Gid> gids;

  std::string name() const;  ///< "mlx5_0:1"
};

/// What one queue pair, completion queue or request may have at most.
struct Limits {
  unsigned ports = 0;
  unsigned requests = 0;     ///< in a send queue
  unsigned pieces = 0;       ///< scatter/gather entries of a request
  unsigned completions = 0;  ///< in a completion queue
  unsigned reads_out = 0;    ///< reads under way that a queue pair started
  unsigned reads_in = 0;     ///< reads under way that its peer started
};

enum class EventKind : std::uint8_t { kPortDown, kPortUp, kQueuePair, kDeviceGone, kOther };

/// What a device says of itself, unasked.
struct Event {
  EventKind kind = EventKind::kOther;
  unsigned port = 0;              ///< of kPortDown and kPortUp
  std::uint32_t queue_pair = 0;   ///< of kQueuePair
  const char* text = "no event";  ///< the library's name for it
};

/// The events of a device for one listener. Any thread.
class EventWatch {
 public:
  /// Readable while events wait.
  int fd() const { return fd_.get(); }
  std::vector<Event> take();

 private:
  friend class Device;
  explicit EventWatch(UniqueFd fd) : fd_(std::move(fd)) {}
  void put(const Event& event);

  const UniqueFd fd_;
  Mutex mutex_;
  std::vector<Event> events_ P2P_GUARDED_BY(mutex_);
};

/// Owns an opened device and its protection domain. Shared by all that is made on it. Any thread.
class Device {
 public:
  /// The names of all devices; none is no error.
  static Result<std::vector<std::string>> list(const Library& library);
  static Result<std::shared_ptr<Device>> open(const Library& library, const std::string& name);

  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }
  const Limits& limits() const { return limits_; }
  Result<Port> port(unsigned number) const;

  /// Its folder below /sys/devices, which shows how near it is to others; empty if it has none.
  const std::string& place() const { return place_; }
  int numa_node() const { return numa_node_; }  ///< -1: unknown

  /// Readable while the device has events that nobody fetched.
  int event_fd() const;

  /// Hands what the device said to all who watch. Never blocks.
  void fetch_events();

  Result<std::shared_ptr<EventWatch>> watch();

  const Library& library() const { return library_; }
  ibv_context* context() const { return context_; }
  ibv_pd* domain() const { return domain_; }

 private:
  Device(const Library& library, std::string name) : library_(library), name_(std::move(name)) {}

  const Library& library_;
  const std::string name_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  Limits limits_;
  std::string place_;
  int numa_node_ = -1;
  Mutex mutex_;
  std::vector<std::weak_ptr<EventWatch>> watches_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::verbs
