// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "buffer.h"

#include <sys/mman.h>

#include <utility>

#include "failure.h"
#include "sizes.h"

namespace p2p::perf {

Result<Pages> Pages::allocate(std::size_t size) {
  void* const data =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (data == MAP_FAILED) return fail_errno(fmt::format("allocate {} bytes", format_size(size)));
  return Pages({static_cast<std::byte*>(data), size});
}

Pages::Pages(Pages&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

Pages::~Pages() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

Result<Buffer> Buffer::allocate(Endpoint& endpoint, const std::string& place, std::size_t size) {
  if (place != "host") {
    return fail(ErrorCode::kUnavailable, "allocate {} bytes on {}: p2p-perf was built without CUDA",
                format_size(size), place);
  }
  auto pages = Pages::allocate(size);
  if (!pages) return tl::unexpected(pages.error());
  Buffer buffer;
  buffer.pages_ = std::move(*pages);
  auto region = endpoint.register_memory(buffer.bytes().data(), size);
  if (!region) return tl::unexpected(region.error());
  buffer.region_ = std::move(*region);
  return buffer;
}

}  // namespace p2p::perf
