// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "softnet/stager.h"

#include <cstring>
#include <utility>

#include "drivers/cuda/device.h"
#include "softnet/log.h"

namespace softnet {

std::unique_ptr<Stager> Stager::open() {
  if (Pool::of_sends() == nullptr) return nullptr;
  auto stager = std::make_unique<Stager>();
  if (!settings().cuda) return stager;
  auto copier = p2p::device::Copier::open(p2p::cuda::current_device(), {.blocks = 1, .lists = kSlots});
  if (!copier) {
    warn("connect: {}", copier.error().message);
    return nullptr;
  }
  stager->copier_ = std::move(*copier);
  return stager;
}

bool Stager::start(std::size_t slot, const std::byte* data, std::size_t size, Pool::Extent& extent) {
  const auto room = Pool::of_sends()->take(size);
  if (!room) return false;
  extent = *room;
  if (!copier_) {
    std::memcpy(at(extent), data, size);
    return true;
  }
  p2p::device::Job& job = jobs_[slot] = {};
  job.part(*copier_).add({data, at(extent), size});  // there is a list for each slot
  job.start();
  return true;
}

Stager::Copied Stager::copied(std::size_t slot) {
  p2p::device::Job& job = jobs_[slot];
  if (!job.finished()) return Copied::kNotYet;
  if (job.status()) return Copied::kYes;
  warn("send: {}", job.status().error().message);
  return Copied::kFailed;
}

}  // namespace softnet
