// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "operations.h"

#include <cuda.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "context.h"
#include "devices.h"

namespace softgpu {
namespace {

/// Where the memory of a legacy handle is to be found.
struct Legacy {
  pid_t process = 0;
  int fd = -1;
};

int place(Range::Kind kind, const std::shared_ptr<Physical>& memory, std::uintptr_t& address) {
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  address = Addresses::of_process().reserve(memory->size());
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  Addresses::of_process().add({.kind = kind, .base = address, .size = memory->size(), .physical = memory});
  return CUDA_SUCCESS;
}

}  // namespace

int allocate(Range::Kind kind, std::size_t size, std::uintptr_t& address) {
  if (const int code = refused(); code != 0) return code;
  return place(kind, Physical::make(any_context()->device, size, false), address);
}

int allocate_managed(std::size_t size, std::uintptr_t& address) {
  if (device_count() == 0) return CUDA_ERROR_NO_DEVICE;
  any_context();
  address = reinterpret_cast<std::uintptr_t>(std::aligned_alloc(4096, (size + 4095) / 4096 * 4096));
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  Addresses::of_process().add(
      {.kind = Range::Kind::kManaged, .base = address, .size = size, .physical = nullptr});
  return CUDA_SUCCESS;
}

int take_away(std::uintptr_t address) {
  if (const int code = refused(); code != 0) return code;
  wait_for_all();
  const auto range = Addresses::of_process().find(address);
  if (!range || range->base != address || range->kind == Range::Kind::kMapped)
    return CUDA_ERROR_INVALID_VALUE;
  Addresses::of_process().remove(address);
  if (range->physical) {
    Addresses::of_process().give_back(address);
  } else {
    std::free(reinterpret_cast<void*>(address));
  }
  return CUDA_SUCCESS;
}

int share(LegacyHandle& handle, std::uintptr_t address) {
  const auto range = Addresses::of_process().find(address);
  if (!range || range->kind != Range::Kind::kMalloc) return CUDA_ERROR_INVALID_VALUE;
  handle = {};
  const Legacy where{::getpid(), range->physical->fd()};
  std::memcpy(handle.data(), &where, sizeof where);
  return CUDA_SUCCESS;
}

int open_shared(const LegacyHandle& handle, std::uintptr_t& address) {
  if (const int code = refused(); code != 0) return code;
  Legacy where;
  std::memcpy(&where, handle.data(), sizeof where);
  if (where.process == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  const std::string path = fmt::format("/proc/{}/fd/{}", where.process, where.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  bool hidden = false;
  const auto memory = Physical::import(fd, hidden);
  if (memory == nullptr) return hidden ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
  return place(Range::Kind::kImported, memory, address);
}

void wait_for_all() { Stream::wait_for_all(); }

}  // namespace softgpu

/// For tests that look at a GPU's memory past the engine: memory of `kind`, as in "mapped:1" (cuda, pooled,
/// mapped, or mapped and private), whose bytes are those of the files. Null if that is not possible.
extern "C" [[gnu::visibility("default")]] void* softgpu_adopt(const char* kind, const int* files,
                                                              std::size_t count, std::size_t each) {
  using softgpu::Addresses;
  using softgpu::Physical;
  using softgpu::Range;
  const std::string_view words(kind);
  const std::string_view name = words.substr(0, words.find(':'));
  const int device = name.size() < words.size() ? std::atoi(kind + name.size() + 1) : 0;
  const bool mapped = name == "mapped" || name == "private";
  if (device >= softgpu::device_count() || (!mapped && count != 1)) return nullptr;
  const Range::Kind as = mapped             ? Range::Kind::kMapped
                         : name == "pooled" ? Range::Kind::kPool
                                            : Range::Kind::kMalloc;
  softgpu::activate(device);
  const std::uintptr_t base = Addresses::of_process().reserve(count * each);
  for (std::size_t i = 0; i != count && base != 0; ++i) {
    const int file = ::fcntl(files[i], F_DUPFD_CLOEXEC, 0);
    const auto memory = Physical::adopt(file, device, each, name == "mapped");
    if (memory == nullptr) return nullptr;
    Addresses::of_process().add({.kind = as, .base = base + i * each, .size = each, .physical = memory});
  }
  return reinterpret_cast<void*>(base);
}
