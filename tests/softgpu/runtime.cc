// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The runtime's functions. Their names and meanings are those of cuda_runtime_api.h.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "context.h"
#include "devices.h"
#include "kernels.h"
#include "memory.h"
#include "operations.h"

namespace {

using softgpu::Addresses;
using softgpu::any_context;
using softgpu::Range;
using softgpu::Stream;
using softgpu::stream_of;

thread_local cudaError_t last_error = cudaSuccess;

// Where there is no GPU the runtime says that, whatever it was asked.
cudaError_t told(int code) {
  if (code != cudaSuccess && softgpu::device_count() == 0) code = cudaErrorNoDevice;
  if (code != cudaSuccess) last_error = static_cast<cudaError_t>(code);
  return static_cast<cudaError_t>(code);
}

std::uintptr_t number(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }
std::uintptr_t& address(void** out) { return *reinterpret_cast<std::uintptr_t*>(out); }

bool is_device(int device) { return device >= 0 && device < softgpu::device_count(); }

cudaError_t state_of(const Stream& stream) { return stream.failed() ? cudaErrorIllegalAddress : cudaSuccess; }

}  // namespace

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "an illegal memory access of the emulated GPU"
                                          : "refused by the emulated GPU";
}
const char* cudaGetErrorName(cudaError_t error) {
  thread_local char name[32];
  std::snprintf(name, sizeof name, "cudaError%d", static_cast<int>(error));
  return name;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = softgpu::device_count();
  return told(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
  const CUctx_st* const current = softgpu::current_context();
  *device = current != nullptr ? current->device : 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return told(cudaErrorInvalidDevice);
  softgpu::current_context() = softgpu::activate(device);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_device(device)) return told(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated");
  const softgpu::Uuid uuid = softgpu::uuid_of(device);
  std::memcpy(&properties->uuid, uuid.data(), uuid.size());
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!is_device(device)) return told(cudaErrorInvalidDevice);
  *value = attribute == cudaDevAttrMultiProcessorCount ? 16 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* out, int size, int device) {
  if (!is_device(device)) return told(cudaErrorInvalidDevice);
  std::snprintf(out, static_cast<std::size_t>(size), "ffff:%02x:00.0", softgpu::uuid_of(device).back());
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = is_device(device) && is_device(peer) && device != peer ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned /*flags*/) {
  return told(is_device(peer) ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaMalloc(void** data, std::size_t size) {
  return told(softgpu::allocate(Range::Kind::kMalloc, size, address(data)));
}

cudaError_t cudaFree(void* data) {
  return data == nullptr ? cudaSuccess : told(softgpu::take_away(number(data)));
}

cudaError_t cudaHostAlloc(void** data, std::size_t size, unsigned /*flags*/) {
  if (const int code = softgpu::refused(); code != 0) return told(code);
  any_context();
  *data = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  if (*data == nullptr) return told(cudaErrorMemoryAllocation);
  Addresses::of_process().add(
      {.kind = Range::Kind::kPinned, .base = number(*data), .size = size, .physical = nullptr});
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* data) {
  if (const int code = softgpu::refused(); code != 0) return told(code);
  softgpu::wait_for_all();
  if (!Addresses::of_process().remove(number(data))) return told(cudaErrorInvalidValue);
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* data, std::size_t size, unsigned /*flags*/) {
  if (const int code = softgpu::refused(); code != 0) return told(code);
  any_context();
  if (Addresses::of_process().find(number(data))) return told(cudaErrorHostMemoryAlreadyRegistered);
  Addresses::of_process().add(
      {.kind = Range::Kind::kPinned, .base = number(data), .size = size, .physical = nullptr});
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* data) {
  if (const int code = softgpu::refused(); code != 0) return told(code);
  softgpu::wait_for_all();
  return told(Addresses::of_process().remove(number(data)) ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned /*flags*/, int /*priority*/) {
  if (softgpu::device_count() == 0) return told(cudaErrorNoDevice);
  CUctx_st* const context = any_context();
  *stream = new CUstream_st{Stream::open(context->device), context};
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  if (const int code = softgpu::refused(); code != 0) return told(code);
  const Stream& stream = *stream_of(handle).stream;
  if (!stream.done(stream.last())) return told(cudaErrorNotReady);
  return told(state_of(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  if (const int code = softgpu::refused(); code != 0) return told(code);
  const Stream& stream = *stream_of(handle).stream;
  stream.wait();
  return told(state_of(stream));
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t size, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  if (!softgpu::are_there(number(target), size) || !softgpu::are_there(number(source), size)) {
    return told(cudaErrorInvalidValue);
  }
  if (stream_of(stream).capturing) return cudaSuccess;
  stream_of(stream).stream->add([=] { return softgpu::copy(number(target), number(source), size); });
  return told(state_of(*stream_of(stream).stream));
}

cudaError_t cudaMemsetAsync(void* data, int value, std::size_t size, cudaStream_t stream) {
  if (stream_of(stream).capturing) return cudaSuccess;
  stream_of(stream).stream->add(
      [=] { return softgpu::set(number(data), static_cast<unsigned char>(value), size); });
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* data) {
  softgpu::LegacyHandle shared{};
  const int code = softgpu::share(shared, number(data));
  std::memcpy(handle, shared.data(), shared.size());
  return told(code);
}

cudaError_t cudaIpcOpenMemHandle(void** data, cudaIpcMemHandle_t handle, unsigned /*flags*/) {
  softgpu::LegacyHandle shared{};
  std::memcpy(shared.data(), &handle, shared.size());
  return told(softgpu::open_shared(shared, address(data)));
}

cudaError_t cudaIpcCloseMemHandle(void* data) { return told(softgpu::take_away(number(data))); }

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** arguments) {
  softgpu::launch(kernel, config->gridDim.x, arguments, *stream_of(config->stream).stream);
  return cudaSuccess;
}
