// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "buffer.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

#include "failure.h"
#include "p2p/shared_memory.h"
#include "sizes.h"

namespace p2p::perf {

Result<Pages> Pages::allocate(std::size_t size, bool shared) {
  if (shared) {
    auto memory = allocate_shared(size);
    if (!memory) return tl::unexpected(memory.error());
    std::memset(memory->get(), 0, size);
    Pages pages({memory->get(), size});
    pages.shared_ = *std::move(memory);
    return pages;
  }
  void* const data =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (data == MAP_FAILED) return fail_errno(fmt::format("allocate {} bytes", format_size(size)));
  return Pages({static_cast<std::byte*>(data), size});
}

Pages::Pages(Pages&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), shared_(std::move(other.shared_)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(shared_, other.shared_);
  return *this;
}

Pages::~Pages() {
  if (!bytes_.empty() && !shared_) ::munmap(bytes_.data(), bytes_.size());
}

Result<Buffer> Buffer::allocate(Endpoint& endpoint, const std::string& place, std::size_t size) {
  const bool shared = place == kSharedMemory;
  const auto kind = GpuKind::parse(shared ? "host" : place);
  if (!kind) return tl::unexpected(kind.error());
  auto pages = Pages::allocate(size, shared);
  if (!pages) return tl::unexpected(pages.error());
  Buffer buffer;
  buffer.pages_ = std::move(*pages);
  void* data = buffer.bytes().data();
  if (kind->device >= 0) {
    auto gpu = GpuMemory::allocate(*kind, size);
    if (!gpu) return tl::unexpected(gpu.error());
    buffer.gpu_ = std::move(*gpu);
    data = buffer.gpu_.data();
  }
  auto region = endpoint.register_memory(data, size);
  if (!region) return tl::unexpected(region.error());
  buffer.region_ = std::move(*region);
  return buffer;
}

Result<Buffer> place_endpoint(Endpoint& endpoint, const std::string& place) {
  constexpr std::size_t kPage = 4096;
  return Buffer::allocate(endpoint, place, kPage);
}

}  // namespace p2p::perf
