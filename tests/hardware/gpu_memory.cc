// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "gpu_memory.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string_view>

#include "../../tools/perf/cuda_driver.h"

namespace p2p::testing {
namespace {

using cuda_driver::Access;
using cuda_driver::Context;
using cuda_driver::Location;
using cuda_driver::MemoryKindAsked;
using Pool = void*;

struct RawHandle {
  char bytes[64];
};

struct PoolAsked {
  int type = 1;       // pinned
  int shared_as = 1;  // descriptors
  Location location;
  void* unused = nullptr;
  std::size_t most = 0;  // the driver's own limit
  unsigned char rest[56] = {};
};
static_assert(sizeof(PoolAsked) == 88);

constexpr unsigned kAttachGlobal = 1;
constexpr unsigned kLazyPeerAccess = 1;

struct Driver : cuda_driver::Driver {
  int (*count)(int* count) = nullptr;
  int (*primary_state)(int device, unsigned* flags, int* active) = nullptr;
  int (*allocate_managed)(std::uint64_t* address, std::size_t size, unsigned flags) = nullptr;
  int (*set)(std::uint64_t target, unsigned char value, std::size_t size) = nullptr;
  int (*memory_info)(std::size_t* free, std::size_t* total) = nullptr;
  int (*share)(RawHandle* handle, std::uint64_t address) = nullptr;
  int (*open)(std::uint64_t* address, RawHandle handle, unsigned flags) = nullptr;
  int (*close)(std::uint64_t address) = nullptr;
  int (*allocate_pooled)(std::uint64_t* address, std::size_t size, void* stream) = nullptr;
  int (*free_pooled)(std::uint64_t address, void* stream) = nullptr;
  int (*make_pool)(Pool* pool, const PoolAsked* kind) = nullptr;
  int (*allocate_from)(std::uint64_t* address, std::size_t size, Pool pool, void* stream) = nullptr;
};

bool find_all(void* library, Driver& driver) {
  using cuda_driver::find;
  return find_all(library, static_cast<cuda_driver::Driver&>(driver)) &&
         find(library, "cuDeviceGetCount", driver.count) &&
         find(library, "cuDevicePrimaryCtxGetState", driver.primary_state) &&
         find(library, "cuMemAllocManaged", driver.allocate_managed) &&
         find(library, "cuMemsetD8_v2", driver.set) && find(library, "cuMemGetInfo_v2", driver.memory_info) &&
         find(library, "cuIpcGetMemHandle", driver.share) &&
         find(library, "cuIpcOpenMemHandle_v2", driver.open) &&
         find(library, "cuIpcCloseMemHandle", driver.close) &&
         find(library, "cuMemAllocAsync", driver.allocate_pooled) &&
         find(library, "cuMemFreeAsync", driver.free_pooled) &&
         find(library, "cuMemPoolCreate", driver.make_pool) &&
         find(library, "cuMemAllocFromPoolAsync", driver.allocate_from);
}

/// Null without a driver that works.
const Driver* driver() {
  static const Driver found = cuda_driver::load<Driver>();
  return found.close != nullptr ? &found : nullptr;
}

tl::unexpected<Error> failure(std::string what, int code) {
  return tl::unexpected(Error{ErrorCode::kSystem, fmt::format("{}: CUDA error {}", what, code)});
}

/// The driver with `device` current on this thread. Contexts stay for the life of the process.
Result<const Driver*> driver_on(int device) {
  const Driver* const found = driver();
  if (found == nullptr) return tl::unexpected(Error{ErrorCode::kUnavailable, "no CUDA driver that works"});
  static std::mutex mutex;
  static std::map<int, Context> contexts;
  const std::scoped_lock lock(mutex);
  Context& context = contexts[device];
  if (context == nullptr) {
    int handle = 0;
    if (const int code = found->get_device(&handle, device); code != 0) {
      return failure(fmt::format("use cuda:{}", device), code);
    }
    if (const int code = found->retain_primary(&context, handle); code != 0) {
      return failure(fmt::format("make a context on cuda:{}", device), code);
    }
  }
  if (const int code = found->set_current(context); code != 0) {
    return failure(fmt::format("make cuda:{} current", device), code);
  }
  return found;
}

/// Memory of a pool that could be exported. There is one pool a device, for the life of the process.
int allocate_from_open_pool(const Driver& driver, int device, std::size_t size, std::uint64_t& address) {
  static std::mutex mutex;
  static std::map<int, Pool> pools;
  const std::scoped_lock lock(mutex);
  Pool& pool = pools[device];
  const PoolAsked kind{.location = {.device = device}};
  const int code = pool != nullptr ? 0 : driver.make_pool(&pool, &kind);
  return code != 0 ? code : driver.allocate_from(&address, size, pool, nullptr);
}

}  // namespace

int gpu_count() {
  int count = 0;
  return driver() != nullptr && driver()->count(&count) == 0 ? count : 0;
}

std::vector<int> gpus_with_context() {
  std::vector<int> found;
  for (int device = 0; device < gpu_count(); ++device) {
    int handle = 0;
    unsigned flags = 0;
    int active = 0;
    if (driver()->get_device(&handle, device) == 0 && driver()->primary_state(handle, &flags, &active) == 0 &&
        active != 0) {
      found.push_back(device);
    }
  }
  return found;
}

Result<std::uint64_t> free_gpu_memory(int device) {
  const auto on = driver_on(device);
  if (!on) return tl::unexpected(on.error());
  std::size_t free = 0;
  std::size_t total = 0;
  if (const int code = (*on)->memory_info(&free, &total); code != 0) {
    return failure(fmt::format("ask for the memory of cuda:{}", device), code);
  }
  return free;
}

Status open_shared(const GpuHandle& handle, int device) {
  const auto on = driver_on(device);
  if (!on) return tl::unexpected(on.error());
  RawHandle raw{};
  std::memcpy(raw.bytes, handle.data(), handle.size());
  std::uint64_t address = 0;
  if (const int code = (*on)->open(&address, raw, kLazyPeerAccess); code != 0) {
    return failure(fmt::format("open shared memory on cuda:{}", device), code);
  }
  if (const int code = (*on)->close(address); code != 0) return failure("close shared memory", code);
  return {};
}

Result<GpuMemory> GpuMemory::allocate(const std::string& place, std::size_t size) {
  static const std::map<std::string, Kind, std::less<>> kinds{
      {"host", Kind::kHost},     {"managed", Kind::kManaged},  {"cuda", Kind::kDevice},
      {"pooled", Kind::kPooled}, {"open_pool", Kind::kPooled}, {"mapped", Kind::kMapped},
      {"gapped", Kind::kMapped}, {"chunks", Kind::kMapped},    {"segments", Kind::kMapped},
      {"private", Kind::kMapped}};
  const std::string name = place.substr(0, place.find(':'));
  const auto kind = kinds.find(name);
  if (kind == kinds.end()) return tl::unexpected(Error{ErrorCode::kInvalidArgument, place + ": no place"});
  GpuMemory memory;
  memory.kind_ = kind->second;
  if (memory.kind_ == Kind::kHost) {
    memory.host_.resize(size);
    return memory;
  }
  if (name.size() < place.size()) {
    std::from_chars(place.data() + name.size() + 1, place.data() + place.size(), memory.device_);
  }
  const auto on = driver_on(memory.device_);
  if (!on) return tl::unexpected(on.error());
  if (memory.kind_ == Kind::kMapped) {
    if (const Status mapped = memory.map(name, size); !mapped) {
      return tl::unexpected(mapped.error());
    }
    return memory;
  }
  int code = 0;
  if (memory.kind_ == Kind::kManaged) {
    code = (*on)->allocate_managed(&memory.address_, size, kAttachGlobal);
  } else if (memory.kind_ == Kind::kPooled) {
    code = name == "open_pool" ? allocate_from_open_pool(**on, memory.device_, size, memory.address_)
                               : (*on)->allocate_pooled(&memory.address_, size, nullptr);
    if (code == 0) code = (*on)->synchronize(nullptr);
  } else {
    code = (*on)->allocate(&memory.address_, size);
  }
  if (code != 0) return failure(fmt::format("allocate {} bytes of {}", size, place), code);
  return memory;
}

// Three memories, or as many of the least size as it takes.
Status GpuMemory::map(const std::string& name, std::size_t size) {
  constexpr std::uint64_t kGranularity = std::uint64_t{2} << 20;
  const auto on = driver_on(device_);
  if (!on) return tl::unexpected(on.error());
  std::size_t count = 3;
  std::uint64_t each = (size / count / kGranularity + 1) * kGranularity;
  if (name == "chunks" || name == "segments") {
    each = name == "chunks" ? kGranularity : 10 * kGranularity;
    count = (size + each - 1) / each;
  }
  if (const int code = (*on)->reserve(&address_, count * each, 0, 0, 0); code != 0) {
    return failure(fmt::format("reserve {} bytes of addresses", count * each), code);
  }
  exportable_ = name != "private";
  chunks_.assign(count, Chunk{each, 0});
  for (std::size_t i = 0; i < count; ++i) {
    if (name == "gapped" && i == 1) continue;
    if (const Status mapped = map_chunk(i); !mapped) return mapped;
  }
  return {};
}

Status GpuMemory::map_chunk(std::size_t i) {
  const auto on = driver_on(device_);
  if (!on) return tl::unexpected(on.error());
  const MemoryKindAsked kind{.shared_as = exportable_ ? cuda_driver::kDescriptor : 0,
                             .location = {.device = device_}};
  const Access access{.location = {.device = device_}};
  const std::uint64_t each = chunks_[i].size;
  const std::uint64_t at = address_ + i * each;
  std::uint64_t memory = 0;
  if (const int code = (*on)->create(&memory, each, &kind, 0); code != 0) {
    return failure(fmt::format("make {} bytes of memory", each), code);
  }
  int code = (*on)->map(at, each, 0, memory, 0);
  if (code != 0) {
    (*on)->release(memory);
    return failure("map memory", code);
  }
  chunks_[i].memory = memory;
  if (code = (*on)->set_access(at, each, &access, 1); code != 0) return failure("allow access", code);
  return {};
}

Status GpuMemory::unmap(std::size_t offset) {
  const auto on = driver_on(device_);
  if (!on) return tl::unexpected(on.error());
  const std::size_t i = offset / chunks_.at(0).size;
  Chunk& chunk = chunks_.at(i);
  if (const int code = (*on)->unmap(address_ + i * chunk.size, chunk.size); code != 0) {
    return failure("unmap memory", code);
  }
  (*on)->release(chunk.memory);
  chunk.memory = 0;
  return {};
}

Status GpuMemory::remap(std::size_t offset) {
  if (const Status gone = unmap(offset); !gone) return gone;
  return map_chunk(offset / chunks_.at(0).size);
}

GpuMemory::~GpuMemory() {
  if (address_ == 0) return;
  const auto on = driver_on(device_);
  if (!on) return;
  if (kind_ == Kind::kPooled) {
    (*on)->free_pooled(address_, nullptr);
    (*on)->synchronize(nullptr);
  } else if (kind_ == Kind::kMapped) {
    std::uint64_t at = address_;
    for (const Chunk& chunk : chunks_) {
      if (chunk.memory != 0) {
        (*on)->unmap(at, chunk.size);
        (*on)->release(chunk.memory);
      }
      at += chunk.size;
    }
    if (at > address_) (*on)->free_reserved(address_, at - address_);
  } else {
    (*on)->free(address_);
  }
}

std::byte* GpuMemory::data() const {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver gives addresses as numbers
  if (kind_ != Kind::kHost) return reinterpret_cast<std::byte*>(address_);
  return const_cast<std::byte*>(host_.data());
}

Status GpuMemory::store(std::size_t offset, std::span<const std::byte> bytes) const {
  if (on_host()) {
    std::memcpy(data() + offset, bytes.data(), bytes.size());
    return {};
  }
  const auto on = driver_on(device_);
  if (!on) return tl::unexpected(on.error());
  int code = (*on)->to_device(address_ + offset, bytes.data(), bytes.size());
  // The copy of pageable memory returns when its bytes have left there, which is before they have arrived.
  if (code == 0) code = (*on)->synchronize(nullptr);
  if (code != 0) return failure(fmt::format("copy {} bytes to cuda:{}", bytes.size(), device_), code);
  return {};
}

Status GpuMemory::load(std::size_t offset, std::span<std::byte> bytes) const {
  if (on_host()) {
    std::memcpy(bytes.data(), data() + offset, bytes.size());
    return {};
  }
  const auto on = driver_on(device_);
  if (!on) return tl::unexpected(on.error());
  const int code = (*on)->from_device(bytes.data(), address_ + offset, bytes.size());
  if (code != 0) return failure(fmt::format("copy {} bytes from cuda:{}", bytes.size(), device_), code);
  return {};
}

// Managed memory is set by the GPU, so that its pages lie there when the engine comes.
Status GpuMemory::set(std::size_t offset, std::size_t size, std::byte value) const {
  if (kind_ == Kind::kHost) {
    std::memset(data() + offset, static_cast<int>(value), size);
    return {};
  }
  const auto on = driver_on(device_);
  if (!on) return tl::unexpected(on.error());
  int code = (*on)->set(address_ + offset, static_cast<unsigned char>(value), size);
  if (code == 0) code = (*on)->synchronize(nullptr);
  if (code != 0) return failure(fmt::format("set {} bytes of cuda:{}", size, device_), code);
  return {};
}

Result<GpuHandle> GpuMemory::share() const {
  const auto on = driver_on(device_);
  if (!on) return tl::unexpected(on.error());
  RawHandle raw{};
  if (const int code = (*on)->share(&raw, address_); code != 0) return failure("share GPU memory", code);
  GpuHandle handle{};
  std::memcpy(handle.data(), raw.bytes, handle.size());
  return handle;
}

}  // namespace p2p::testing
