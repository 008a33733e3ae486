// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "gpu.h"

#include <algorithm>
#include <charconv>
#include <system_error>

#include "cuda_driver.h"
#include "failure.h"
#include "sizes.h"

namespace p2p::perf {
namespace {

using cuda_driver::Driver;

/// The driver with `device` current on this thread. Contexts stay for the life of the process.
Result<const Driver*> driver_on(int device) {
  static const Driver driver = cuda_driver::load<Driver>();
  if (driver.synchronize == nullptr) {
    return fail(ErrorCode::kUnavailable, "use cuda:{}: no CUDA driver that works", device);
  }
  int handle = 0;
  cuda_driver::Context context = nullptr;
  if (driver.get_device(&handle, device) != 0) {
    return fail(ErrorCode::kUnavailable, "use cuda:{}: there is no such device", device);
  }
  if (driver.retain_primary(&context, handle) != 0 || driver.set_current(context) != 0) {
    return fail(ErrorCode::kSystem, "use cuda:{}: it gives no context", device);
  }
  return &driver;
}

}  // namespace

Result<GpuKind> GpuKind::parse(std::string_view place) {
  GpuKind kind;
  if (place == "host") return kind;
  const std::size_t colon = std::min(place.find(':'), place.size());
  const std::string_view name = place.substr(0, colon);
  const bool mapped = name == "mapped" || name == "private";
  const char* const end = place.data() + place.size();
  std::uint64_t mib = 1;
  std::from_chars_result parsed{end, std::errc::invalid_argument};
  if (colon < place.size() && (mapped || name == "cuda")) {
    parsed = std::from_chars(place.data() + colon + 1, end, kind.device);
    if (parsed.ec == std::errc{} && mapped && parsed.ptr != end && *parsed.ptr == ':') {
      parsed = std::from_chars(parsed.ptr + 1, end, mib);
      kind.chunk_bytes = mib << 20;
    }
  }
  const bool good =
      parsed.ec == std::errc{} && parsed.ptr == end && kind.device >= 0 && mib % 2 == (mapped ? 0 : 1);
  if (!good || mib == 0 || mib > 1024) {
    return fail(
        ErrorCode::kInvalidArgument,
        "--memory {}: neither host nor shared nor cuda:N nor mapped:N:MIB nor private:N:MIB (MIB even)",
        place);
  }
  kind.exportable = name != "private";
  return kind;
}

Result<GpuMemory> GpuMemory::allocate(const GpuKind& kind, std::size_t size) {
  const int device = kind.device;
  const auto driver = driver_on(device);
  if (!driver) return tl::unexpected(driver.error());
  if (kind.chunk_bytes != 0) {
    GpuMemory memory(device, 0);
    const Status mapped = memory.map(kind, (size + kind.chunk_bytes - 1) / kind.chunk_bytes);
    if (!mapped) return tl::unexpected(mapped.error());
    return memory;
  }
  // As frameworks allocate: what is no multiple of a large page is mapped in small ones in other processes.
  constexpr std::size_t kLargePage = std::size_t{2} << 20;
  size = (size + kLargePage - 1) / kLargePage * kLargePage;
  std::uint64_t address = 0;
  if (const int code = (*driver)->allocate(&address, size); code != 0) {
    return fail(ErrorCode::kSystem, "allocate {} bytes on cuda:{}: CUDA error {}", format_size(size), device,
                code);
  }
  return GpuMemory(device, address);
}

Status GpuMemory::map(const GpuKind& kind, std::size_t count) {
  const auto driver = driver_on(device_);
  if (!driver) return tl::unexpected(driver.error());
  const cuda_driver::MemoryKindAsked asked{.shared_as = kind.exportable ? cuda_driver::kDescriptor : 0,
                                           .location = {.device = device_}};
  chunks_.bytes = kind.chunk_bytes;
  chunks_.reserved = count * kind.chunk_bytes;
  int code = (*driver)->reserve(&address_, chunks_.reserved, 0, 0, 0);
  for (std::size_t i = 0; i < count && code == 0; ++i) {
    std::uint64_t memory = 0;
    code = (*driver)->create(&memory, kind.chunk_bytes, &asked, 0);
    if (code != 0) break;
    code = (*driver)->map(address_ + i * kind.chunk_bytes, kind.chunk_bytes, 0, memory, 0);
    if (code == 0) {
      chunks_.memories.push_back(memory);
    } else {
      (*driver)->release(memory);
    }
  }
  const cuda_driver::Access access{.location = {.device = device_}};
  if (code == 0) code = (*driver)->set_access(address_, chunks_.reserved, &access, 1);
  if (code == 0) return {};
  return fail(ErrorCode::kSystem, "map {} chunks of {} bytes on cuda:{}: CUDA error {}", count,
              format_size(kind.chunk_bytes), device_, code);
}

GpuMemory::~GpuMemory() {
  if (address_ == 0) return;
  const auto driver = driver_on(device_);
  if (!driver) return;
  if (chunks_.reserved == 0) {
    (*driver)->free(address_);
    return;
  }
  for (std::size_t i = 0; i < chunks_.memories.size(); ++i) {
    (*driver)->unmap(address_ + i * chunks_.bytes, chunks_.bytes);
    (*driver)->release(chunks_.memories[i]);
  }
  (*driver)->free_reserved(address_, chunks_.reserved);
}

// NOLINTNEXTLINE(performance-no-int-to-ptr): the driver gives addresses as numbers
std::byte* GpuMemory::data() const { return reinterpret_cast<std::byte*>(address_); }

Status GpuMemory::store(std::span<const std::byte> bytes) const {
  const auto driver = driver_on(device_);
  if (!driver) return tl::unexpected(driver.error());
  int code = (*driver)->to_device(address_, bytes.data(), bytes.size());
  // The copy of pageable memory returns when its bytes have left there, which is before they have arrived.
  if (code == 0) code = (*driver)->synchronize(nullptr);
  if (code != 0) return fail(ErrorCode::kSystem, "copy to cuda:{}: CUDA error {}", device_, code);
  return {};
}

Status GpuMemory::load(std::span<std::byte> bytes) const {
  const auto driver = driver_on(device_);
  if (!driver) return tl::unexpected(driver.error());
  const int code = (*driver)->from_device(bytes.data(), address_, bytes.size());
  if (code != 0) return fail(ErrorCode::kSystem, "copy from cuda:{}: CUDA error {}", device_, code);
  return {};
}

}  // namespace p2p::perf
