// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The whole of drivers/cuda where the CUDA toolkit was missing at build time.
#include "base/error.h"
#include "drivers/cuda/chunk.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/dma_buffer.h"
#include "drivers/cuda/error.h"
#include "drivers/cuda/foreign_pointer.h"
#include "drivers/cuda/ipc.h"
#include "drivers/cuda/mark.h"
#include "drivers/cuda/memory.h"
#include "drivers/cuda/place.h"
#include "drivers/cuda/stream.h"
#include "drivers/cuda/window.h"

namespace p2p::cuda {
namespace {

tl::unexpected<Error> absent() { return fail(ErrorCode::kUnavailable, "built without CUDA"); }

}  // namespace

Error error_of(int /*code*/, std::string_view what) {
  return Error{ErrorCode::kUnavailable, fmt::format("{}: built without CUDA", what)};
}
Status check(int code, std::string_view what) {
  if (code == 0) return {};
  return tl::unexpected<Error>(error_of(code, what));
}

Status available() { return absent(); }
int device_count() { return 0; }
Result<DeviceUuid> uuid_of(int /*device*/) { return absent(); }
std::optional<int> find_device(const DeviceUuid& /*uuid*/) { return std::nullopt; }
std::vector<int> active_devices() { return {}; }
int current_device() { return 0; }
bool reaches(int device, int peer) { return device == peer; }
Status enable_peer(int /*device*/, int /*peer*/) { return absent(); }
DeviceGuard::DeviceGuard(int /*device*/) : status_(absent()) {}
DeviceGuard::~DeviceGuard() = default;

Result<MemoryPlace> place_of(const void* pointer) {
  if (!is_on_a_device(pointer)) return MemoryPlace{};
  return fail(ErrorCode::kUnavailable, "{} is CUDA device memory, and this library was built without CUDA",
              pointer);
}
Result<std::string> bus_id_of(int /*device*/) { return absent(); }
Result<Allocation> allocation_of(const void* /*pointer*/) { return absent(); }
Status check_range(const Allocation& /*allocation*/, const std::byte* /*data*/, std::uint64_t /*size*/) {
  return absent();
}
bool is_there(const Allocation& /*allocation*/, const void* /*pointer*/) { return false; }
std::string_view why_private(const Allocation& /*allocation*/) { return ""; }
std::uint64_t buffer_id_of(const void* /*pointer*/) { return 0; }
std::uint64_t memory_id_of(const void* /*pointer*/) { return 0; }
bool pinned(const void* /*pointer*/, std::size_t /*bytes*/) { return false; }

Result<HostBuffer> HostBuffer::allocate(std::size_t /*bytes*/, std::optional<int> /*numa_node*/) {
  return absent();
}
HostBuffer::~HostBuffer() = default;
Result<HostPin> HostPin::pin(std::byte* /*data*/, std::size_t /*bytes*/) { return absent(); }
HostPin::~HostPin() = default;
Result<DeviceBuffer> DeviceBuffer::allocate(int /*device*/, std::size_t /*bytes*/, bool /*zero*/) {
  return absent();
}
DeviceBuffer::~DeviceBuffer() = default;
Status copy_now(void* /*target*/, const void* /*source*/, std::size_t /*bytes*/) { return absent(); }

Result<Stream> Stream::open(int /*device*/, Priority /*priority*/) { return absent(); }
Stream::~Stream() = default;
Status Stream::copy(void* /*target*/, const void* /*source*/, std::size_t /*bytes*/) const {
  return absent();
}
Status Stream::signal(std::uint32_t* /*word*/, std::uint32_t /*value*/) const { return absent(); }
Result<bool> Stream::idle() const { return absent(); }
Status Stream::synchronize() const { return absent(); }

Result<StreamMark> StreamMark::set(void* /*stream*/) { return absent(); }
StreamMark::~StreamMark() = default;
Result<bool> StreamMark::passed() const { return absent(); }

Result<DmaBuffer> DmaBuffer::open(const std::byte* /*data*/, std::size_t /*bytes*/) { return absent(); }

Result<IpcHandle> ipc_handle_of(const void* /*pointer*/) { return absent(); }
Result<IpcMapping> IpcMapping::open(const IpcHandle& /*handle*/, int /*device*/) { return absent(); }
IpcMapping::~IpcMapping() = default;

Result<std::vector<Chunk>> chunks_of(const Allocation& /*allocation*/, const std::byte* /*data*/,
                                     std::uint64_t /*size*/) {
  return absent();
}
bool is_there(const Chunk& /*chunk*/) { return false; }
Result<UniqueFd> export_chunk(const Chunk& /*chunk*/) { return absent(); }
Result<UniqueFd> make_chunk(int /*device*/, std::uint64_t /*size*/) { return absent(); }

Result<Window> Window::reserve(std::uint64_t /*size*/) { return absent(); }
Window::~Window() = default;
Status Window::add(const UniqueFd& /*exported*/, std::uint64_t /*size*/) { return absent(); }
Status Window::add(const Chunk& /*own*/) { return absent(); }
Status Window::map(unsigned long long /*handle*/, std::uint64_t /*size*/) { return absent(); }
Status Window::allow(int /*device*/, std::uint64_t /*from*/) const { return absent(); }

}  // namespace p2p::cuda
