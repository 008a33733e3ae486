// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <utility>

#include "base/shared_memory.h"
#include "drivers/cuda/place.h"
#include "p2p/memory.h"
#include "p2p/shared_memory.h"

namespace p2p {

std::uint64_t bytes_in_allocation(const void* data) {
  const auto place = cuda::place_of(data);
  if (!place || place->kind == MemoryKind::kHost) return std::numeric_limits<std::uint64_t>::max();
  const auto allocation = cuda::allocation_of(data);
  if (!allocation) return std::numeric_limits<std::uint64_t>::max();
  return allocation->size -
         static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - allocation->base);
}

Result<std::shared_ptr<std::byte>> allocate_shared(std::size_t bytes) {
  auto made = SharedMemory::create(bytes);
  if (!made) return tl::unexpected(std::move(made.error()));
  std::byte* const data = (*made)->data();
  return std::shared_ptr<std::byte>(*std::move(made), data);
}

}  // namespace p2p
