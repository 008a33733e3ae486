// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/verbs/memory.h"

#include "base/error.h"
#include "drivers/verbs/table.h"

namespace p2p::verbs {
namespace {

int access_for(Remote remote) {
  constexpr int kReads = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  return remote == Remote::kReads ? kReads : kReads | IBV_ACCESS_REMOTE_WRITE;
}

Error refused(const Device& device, const std::byte* data, std::size_t size, int error) {
  Error why = system_error(
      fmt::format("register {} bytes at {} with {}", size, static_cast<const void*>(data), device.name()),
      error);
  if (error == ENOMEM) why.message += " (is the limit of locked memory, ulimit -l, too low?)";
  return why;
}

}  // namespace

Result<MemoryRegion> MemoryRegion::add(std::shared_ptr<Device> device, std::byte* data, std::size_t size,
                                       Remote remote) {
  // The library's function, not the header's macro: all access is mandatory, so both are the same.
  ibv_mr* region = (device->library().reg_mr)(device->domain(), data, size, access_for(remote));
  if (region == nullptr) return tl::unexpected<Error>(refused(*device, data, size, errno));
  return MemoryRegion(std::move(device), region);
}

Result<MemoryRegion> MemoryRegion::add(std::shared_ptr<Device> device, const DmaBuffer& buffer,
                                       std::byte* data, std::size_t size, Remote remote) {
  const auto reg_dmabuf_mr = device->library().reg_dmabuf_mr;
  if (reg_dmabuf_mr == nullptr) {
    return fail(ErrorCode::kUnavailable, "libibverbs has no ibv_reg_dmabuf_mr (rdma-core 34 has)");
  }
  ibv_mr* region = reg_dmabuf_mr(device->domain(), buffer.offset, size, reinterpret_cast<std::uint64_t>(data),
                                 buffer.fd, access_for(remote));
  if (region == nullptr) return tl::unexpected<Error>(refused(*device, data, size, errno));
  return MemoryRegion(std::move(device), region);
}

MemoryRegion::~MemoryRegion() {
  if (region_ != nullptr) device_->library().dereg_mr(region_);
}

std::uint32_t MemoryRegion::local_key() const { return region_->lkey; }
std::uint32_t MemoryRegion::remote_key() const { return region_->rkey; }

}  // namespace p2p::verbs
