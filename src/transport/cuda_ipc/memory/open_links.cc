// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/memory/open_links.h"

#include <cstdint>

#include "base/log.h"
#include "drivers/cuda/chunk.h"
#include "drivers/cuda/device.h"

namespace p2p::cuda_ipc {
namespace {

// As small as memory that is mapped gets.
constexpr std::uint64_t kBytes = std::uint64_t{2} << 20;

}  // namespace

Result<OpenLinks::Kept> OpenLinks::map_new(int peer) {
  auto chunk = cuda::make_chunk(peer, kBytes);
  if (!chunk) return tl::unexpected(std::move(chunk.error()));
  auto window = cuda::Window::reserve(kBytes);
  if (!window) return tl::unexpected(std::move(window.error()));
  if (Status added = window->add(*chunk, kBytes); !added) return tl::unexpected(std::move(added.error()));
  return Kept{std::move(*chunk), std::move(*window)};
}

void OpenLinks::open(int device) {
  for (int peer = 0; peer < cuda::device_count(); ++peer) {
    if (peer == device || !cuda::reaches(device, peer)) continue;
    const MutexLock lock(mutex_);
    if (!open_.emplace(device, peer).second) continue;
    if (const Status opened = open(device, peer); !opened) {
      log(LogLevel::kDebug, "the way from CUDA device {} to {} is not opened ahead: {}", device, peer,
          opened.error().message);
    }
  }
}

Status OpenLinks::open(int device, int peer) {
  auto known = kept_.find(peer);
  if (known == kept_.end()) {
    auto made = map_new(peer);
    if (!made) return tl::unexpected(std::move(made.error()));
    known = kept_.emplace(peer, std::move(*made)).first;
  }
  return known->second.window.allow(device);
}

}  // namespace p2p::cuda_ipc
