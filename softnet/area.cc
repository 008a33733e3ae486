// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "softnet/area.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "drivers/cuda/device.h"
#include "softnet/log.h"
#include "softnet/settings.h"

namespace softnet {
namespace {

struct Spare {
  std::mutex mutex;
  std::vector<std::unique_ptr<UnpackArea>> areas;
};

Spare& spare() {
  static Spare* const all = new Spare;
  return *all;
}

}  // namespace

void UnpackArea::Return::operator()(UnpackArea* area) const {
  std::unique_ptr<UnpackArea> owned(area);
  const std::lock_guard lock(spare().mutex);
  spare().areas.push_back(std::move(owned));
}

std::unique_ptr<UnpackArea> UnpackArea::make(int device) {
  auto area = std::make_unique<UnpackArea>();
  if (device < 0) {
    area->pageable_ = std::make_unique<abi::UnpackLists>();
    area->lists_ = area->pageable_.get();
    return area;
  }
  auto pinned = p2p::cuda::HostBuffer::allocate(sizeof(abi::UnpackLists));
  auto memory = p2p::cuda::DeviceBuffer::allocate(device, sizeof(abi::UnpackDevice));
  if (!pinned || !memory) {
    warn("accept: {}", pinned ? memory.error().message : pinned.error().message);
    return nullptr;
  }
  area->pinned_ = std::move(*pinned);
  area->device_ = std::move(*memory);
  area->lists_ = new (area->pinned_.data()) abi::UnpackLists;
  return area;
}

bool UnpackArea::reset(std::byte* pool) {
  std::ranges::fill(lists_->count, 0);
  plain_ = {lists_, pool, ~std::uint64_t{0}};
  if (device_.data() == nullptr) return true;
  const auto copied = p2p::cuda::copy_now(device_.data(), &plain_, sizeof plain_);
  if (!copied) warn("accept: {}", copied.error().message);
  return copied.has_value();
}

UnpackArea::Owner UnpackArea::take(std::byte* pool) {
  const int device = settings().cuda ? p2p::cuda::current_device() : -1;
  std::unique_ptr<UnpackArea> area;
  {
    const std::lock_guard lock(spare().mutex);
    auto& areas = spare().areas;
    const auto fits = [device](const auto& one) { return one->device_.device() == device; };
    if (const auto found = std::ranges::find_if(areas, fits); found != areas.end()) {
      area = std::move(*found);
      areas.erase(found);
    }
  }
  if (!area) area = make(device);
  if (!area || !area->reset(pool)) return nullptr;
  return Owner(area.release());
}

}  // namespace softnet
