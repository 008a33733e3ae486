// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/window.h"

#include "base/error.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/retained.h"

namespace p2p::cuda {
namespace {

tl::unexpected<Error> driver_error(std::string_view what, CUresult code) {
  return fail(ErrorCode::kUnavailable, "{}: driver error {}", what, static_cast<int>(code));
}

CUdeviceptr address(const std::byte* data) { return reinterpret_cast<CUdeviceptr>(data); }

}  // namespace

Result<Window> Window::reserve(std::uint64_t size) {
  const auto driver = load_driver();
  if (!driver) return tl::unexpected<Error>(driver.error());
  const DeviceGuard guard(kAnyDevice);
  if (!guard.status()) return tl::unexpected<Error>(guard.status().error());
  CUdeviceptr data = 0;
  const CUresult code = (*driver)->reserve_addresses(&data, size, 0, 0, 0);
  if (code != CUDA_SUCCESS) return driver_error(fmt::format("reserve {} bytes of addresses", size), code);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver gives addresses as numbers
  return Window(reinterpret_cast<std::byte*>(data), size);
}

Window::~Window() {
  if (data_ == nullptr) return;
  const Driver* const driver = loaded_driver();
  const DeviceGuard guard(kAnyDevice);
  if (mapped_ != 0) driver->unmap_memory(address(data_), mapped_);
  driver->free_addresses(address(data_), size_);
}

Status Window::map(unsigned long long handle, std::uint64_t size) {
  if (size > size_ - mapped_) {
    return fail(ErrorCode::kInvalidArgument, "map {} bytes where {} are left", size, size_ - mapped_);
  }
  const CUresult code = loaded_driver()->map_memory(address(data_) + mapped_, size, 0, handle, 0);
  if (code != CUDA_SUCCESS) return driver_error(fmt::format("map {} bytes of device memory", size), code);
  mapped_ += size;
  return {};
}

Status Window::add(const UniqueFd& exported, std::uint64_t size) {
  const DeviceGuard guard(kAnyDevice);
  if (!guard.status()) return guard.status();
  const RetainedMemory memory(*loaded_driver(), exported.get());
  if (!memory) {
    const std::string_view why =
        memory.code() == CUDA_ERROR_INVALID_DEVICE ? " (its GPU is not there in this container)" : "";
    return driver_error(fmt::format("take over {} bytes of a peer's device memory{}", size, why),
                        memory.code());
  }
  return map(memory.handle(), size);
}

Status Window::add(const Chunk& own) {
  const DeviceGuard guard(kAnyDevice);
  if (!guard.status()) return guard.status();
  const RetainedMemory memory(*loaded_driver(), address(own.base));
  if (!memory || !is_there(own)) {
    return fail(ErrorCode::kNotFound, "the memory at {} was unmapped, or other memory is mapped there now",
                static_cast<const void*>(own.base));
  }
  return map(memory.handle(), own.size);
}

Status Window::allow(int device, std::uint64_t from) const {
  const DeviceGuard guard(device);
  if (!guard.status()) return guard.status();
  CUmemAccessDesc access{};
  access.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult code = loaded_driver()->set_access(address(data_) + from, mapped_ - from, &access, 1);
  if (code == CUDA_SUCCESS) return {};
  return driver_error(fmt::format("let CUDA device {} use {} bytes of device memory", device, mapped_ - from),
                      code);
}

}  // namespace p2p::cuda
