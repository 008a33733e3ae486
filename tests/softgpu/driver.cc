// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The driver's functions. Their names and meanings are those of cuda.h.
#include <cuda.h>
#include <fcntl.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "context.h"
#include "devices.h"
#include "memory.h"
#include "operations.h"

namespace {

using softgpu::Addresses;
using softgpu::Physical;
using softgpu::Range;

/// Memory that a handle stands for, and how many times it was given.
struct Handles {
  struct Held {
    std::shared_ptr<Physical> memory;
    unsigned count = 0;
  };

  std::mutex mutex;
  std::map<CUmemGenericAllocationHandle, Held> all;

  CUmemGenericAllocationHandle hold(const std::shared_ptr<Physical>& memory) {
    const std::lock_guard lock(mutex);
    Held& held = all[memory->id()];
    held.memory = memory;
    ++held.count;
    return memory->id();
  }

  std::shared_ptr<Physical> find(CUmemGenericAllocationHandle handle) {
    const std::lock_guard lock(mutex);
    const auto found = all.find(handle);
    return found == all.end() ? nullptr : found->second.memory;
  }

  bool release(CUmemGenericAllocationHandle handle) {
    const std::lock_guard lock(mutex);
    const auto found = all.find(handle);
    if (found == all.end()) return false;
    if (--found->second.count == 0) all.erase(found);
    return true;
  }
};

Handles& handles() {
  static Handles* const all = new Handles;  // for threads that outlive main
  return *all;
}

CUresult result(int code) { return static_cast<CUresult>(code); }
CUresult copied(bool right) { return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
std::uintptr_t& at(CUdeviceptr* out) { return *reinterpret_cast<std::uintptr_t*>(out); }

void attribute(CUpointer_attribute name, const Range* range, void* out) {
  const bool device = range != nullptr && range->physical != nullptr;
  const auto number = [out](auto value) { std::memcpy(out, &value, sizeof value); };
  switch (name) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return number(
          range == nullptr ? 0U : static_cast<unsigned>(device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return number(device ? range->physical->device() : -2);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return number(range != nullptr && range->kind == Range::Kind::kManaged ? 1U : 0U);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return number(CUdeviceptr{range == nullptr ? 0 : range->base});
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return number(range == nullptr ? std::size_t{0} : range->size);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return number(range == nullptr ? 0ULL : range->id);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return number(device && range->kind == Range::Kind::kMalloc ? 1U : 0U);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return number(range != nullptr && range->kind == Range::Kind::kPool ? std::uintptr_t{1}
                                                                          : std::uintptr_t{0});
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return number(device ? range->physical->id() : 0ULL);
    default: return;
  }
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned /*flags*/) {
  return softgpu::device_count() == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = softgpu::device_count();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < softgpu::device_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = softgpu::activate(device);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = softgpu::current_context();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  softgpu::current_context() = context;
  return CUDA_SUCCESS;
}

// As dlsym finds it: cuda.h declares later versions under this name.
CUresult softgpu_create_context(CUcontext* context, unsigned /*flags*/,
                                CUdevice device) asm("cuCtxCreate_v2");
CUresult softgpu_create_context(CUcontext* context, unsigned /*flags*/, CUdevice device) {
  *context = softgpu::current_context() = new CUctx_st{device};
  return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext context) {
  if (softgpu::current_context() == context) softgpu::current_context() = nullptr;
  delete context;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  *flags = 0;
  *active = softgpu::is_active(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* names, void** values,
                                CUdeviceptr pointer) {
  const auto range = Addresses::of_process().find(pointer);
  for (unsigned i = 0; i != count; ++i) attribute(names[i], range ? &*range : nullptr, values[i]);
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute name, CUdeviceptr pointer) {
  const auto range = Addresses::of_process().find(pointer);
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  attribute(name, &*range, value);
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  const int before = softgpu::capture_mode();
  softgpu::capture_mode() = *mode;
  *mode = static_cast<CUstreamCaptureMode>(before);
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  *context = softgpu::stream_of(stream).context;
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  *status =
      softgpu::stream_of(stream).capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  softgpu::begin_capture(softgpu::stream_of(stream), mode);
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  static int empty = 0;
  const bool kept = softgpu::end_capture(softgpu::stream_of(stream));
  *graph = kept ? reinterpret_cast<CUgraph>(&empty) : nullptr;
  return kept ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult cuGraphDestroy(CUgraph /*graph*/) { return CUDA_SUCCESS; }

CUresult cuStreamCreate(CUstream* stream, unsigned /*flags*/) {
  CUctx_st* const context = softgpu::any_context();
  *stream = new CUstream_st{softgpu::Stream::open(context->device), context};
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
  delete stream;
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
  const softgpu::Stream& stream = *softgpu::stream_of(handle).stream;
  if (const int code = softgpu::refused(); code != 0) return result(code);
  stream.wait();
  return stream.failed() ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned /*flags*/) {
  softgpu::stream_of(stream).stream->add([address, value] {
    const softgpu::Piece word = softgpu::piece_at(address, sizeof value);
    if (word.size != sizeof value) return false;
    std::atomic_ref(*reinterpret_cast<cuuint32_t*>(word.data)).store(value, std::memory_order_release);
    return true;
  });
  return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* argument) {
  softgpu::stream_of(stream).stream->add([function, argument] {
    function(argument);
    return true;
  });
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned /*flags*/) {
  *event = new CUevent_st;
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  event->stream = softgpu::stream_of(stream).stream;
  event->number = event->stream->last();
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  return event->stream == nullptr || event->stream->done(event->number) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventDestroy(CUevent event) {
  delete event;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t size) {
  return result(softgpu::allocate(Range::Kind::kMalloc, size, at(address)));
}

CUresult cuMemAllocManaged(CUdeviceptr* address, std::size_t size, unsigned /*flags*/) {
  return result(softgpu::allocate_managed(size, at(address)));
}

CUresult cuMemFree(CUdeviceptr address) { return result(softgpu::take_away(address)); }

CUresult cuMemAllocAsync(CUdeviceptr* address, std::size_t size, CUstream /*stream*/) {
  return result(softgpu::allocate(Range::Kind::kPool, size, at(address)));
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream /*stream*/) {
  return result(softgpu::take_away(address));
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* /*properties*/) {
  static int any = 0;
  *pool = reinterpret_cast<CUmemoryPool>(&any);
  return CUDA_SUCCESS;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t size, CUmemoryPool /*pool*/,
                                 CUstream stream) {
  return cuMemAllocAsync(address, size, stream);
}

CUresult cuMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = std::size_t{16} << 30;
  *free = *total - Physical::bytes();
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr target, const void* source, std::size_t size) {
  return copied(softgpu::copy(target, reinterpret_cast<std::uintptr_t>(source), size));
}

CUresult cuMemcpyDtoH(void* target, CUdeviceptr source, std::size_t size) {
  return copied(softgpu::copy(reinterpret_cast<std::uintptr_t>(target), source, size));
}

CUresult cuMemsetD8(CUdeviceptr target, unsigned char value, std::size_t size) {
  return copied(softgpu::set(target, value, size));
}

CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, std::size_t size, CUstream stream) {
  if (softgpu::stream_of(stream).capturing) return CUDA_SUCCESS;
  softgpu::stream_of(stream).stream->add([=] { return softgpu::set(target, value, size); });
  return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  softgpu::LegacyHandle shared{};
  const int code = softgpu::share(shared, address);
  std::memcpy(handle, shared.data(), shared.size());
  return result(code);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned /*flags*/) {
  softgpu::LegacyHandle shared{};
  std::memcpy(shared.data(), &handle, shared.size());
  return result(softgpu::open_shared(shared, at(address)));
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) { return result(softgpu::take_away(address)); }

CUresult cuMemGetAddressRange(CUdeviceptr* base, std::size_t* size, CUdeviceptr pointer) {
  const auto range = Addresses::of_process().find(pointer);
  if (!range) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = range->base;
  if (size != nullptr) *size = range->size;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size,
                     const CUmemAllocationProp* properties, unsigned long long /*flags*/) {
  if (properties->location.id < 0 || properties->location.id >= softgpu::device_count()) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  const bool exportable = (properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
  const auto memory = Physical::make(properties->location.id, size, exportable);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = handles().hold(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  const auto range = Addresses::of_process().find(reinterpret_cast<std::uintptr_t>(address));
  if (!range || range->kind != Range::Kind::kMapped) return CUDA_ERROR_INVALID_VALUE;
  *handle = handles().hold(range->physical);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return handles().release(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  const auto memory = handles().find(handle);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *properties = {};
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties->location.id = memory->device();
  if (memory->exportable()) properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long /*flags*/) {
  const auto memory = handles().find(handle);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!memory->exportable() || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  const int fd = ::fcntl(memory->fd(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  std::memcpy(out, &fd, sizeof fd);
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shared,
                                        CUmemAllocationHandleType type) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  const int fd = ::fcntl(static_cast<int>(reinterpret_cast<std::intptr_t>(shared)), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  bool hidden = false;
  const auto memory = Physical::import(fd, hidden);
  if (memory == nullptr) return hidden ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
  *handle = handles().hold(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* base, std::size_t size, std::size_t /*alignment*/,
                             CUdeviceptr /*hint*/, unsigned long long /*flags*/) {
  *base = Addresses::of_process().reserve(size);
  return *base != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAddressFree(CUdeviceptr base, std::size_t /*size*/) {
  Addresses::of_process().give_back(base);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr base, std::size_t size, std::size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long /*flags*/) {
  const auto memory = handles().find(handle);
  if (memory == nullptr || offset != 0 || size > memory->size()) return CUDA_ERROR_INVALID_VALUE;
  Addresses::of_process().add(
      {.kind = Range::Kind::kMapped, .base = base, .size = size, .physical = memory, .reachable = false});
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr base, std::size_t size) {
  Addresses::of_process().each_within(base, size, [](Range&) { return false; });
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr base, std::size_t size, const CUmemAccessDesc* /*access*/,
                        std::size_t /*count*/) {
  Addresses::of_process().each_within(base, size, [](Range& range) { return range.reachable = true; });
  return CUDA_SUCCESS;
}

}  // extern "C"
