// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/rdma/region.h"

#include <limits>

#include "base/error.h"
#include "base/underlying.h"
#include "drivers/cuda/dma_buffer.h"

namespace p2p::rdma {
namespace {

verbs::Remote rights(const RegionInfo& info) {
  return info.read_only() ? verbs::Remote::kReads : verbs::Remote::kReadsAndWrites;
}

// First as a DMA-BUF, then by its address, which works where a module lets the NIC's driver pin GPU memory.
Result<verbs::MemoryRegion> add_cuda(const std::shared_ptr<verbs::Device>& device, const RegionInfo& info) {
  std::string why;
  const auto buffer = cuda::DmaBuffer::open(info.base, info.size);
  if (buffer) {
    auto region = verbs::MemoryRegion::add(device, {.fd = buffer->fd(), .offset = buffer->offset()},
                                           info.base, info.size, rights(info));
    if (region) return region;
    why = region.error().message;
  } else {
    why = buffer.error().message;
  }
  auto region = verbs::MemoryRegion::add(device, info.base, info.size, rights(info));
  if (region) return region;
  return fail(ErrorCode::kUnavailable, "by DMA-BUF: {}; by peer memory: {}", why, region.error().message);
}

}  // namespace

Result<std::shared_ptr<RdmaRegistration>> RdmaRegistration::add(
    std::span<const std::shared_ptr<verbs::Device>> devices, const RegionInfo& info) {
  std::shared_ptr<RdmaRegistration> registration(new RdmaRegistration(info));
  for (const auto& device : devices) {
    auto region = info.place.kind == MemoryKind::kCuda
                      ? add_cuda(device, info)
                      : verbs::MemoryRegion::add(device, info.base, info.size, rights(info));
    if (!region) return tl::unexpected(region.error());
    registration->regions_.push_back(std::move(*region));
  }
  return registration;
}

std::vector<std::byte> RdmaRegistration::export_key() const {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.put(static_cast<std::uint8_t>(regions_.size()));
  for (const verbs::MemoryRegion& region : regions_) writer.put(region.remote_key());
  return bytes;
}

Result<std::unique_ptr<RdmaKey>> RdmaKey::parse(const RegionInfo& info, ByteView exported) {
  const auto base = reinterpret_cast<std::uint64_t>(info.base);
  ByteReader reader(exported);
  const auto count = reader.get<std::uint8_t>();
  std::unique_ptr<RdmaKey> key(new RdmaKey(info));
  for (unsigned i = 0; i < count && reader.ok(); ++i) key->keys_.push_back(reader.get<std::uint32_t>());
  if (!reader.ok() || reader.left() != 0 || count == 0 || count > kMaxDevices || info.base == nullptr ||
      info.size > std::numeric_limits<std::uint64_t>::max() - base) {
    return fail(ErrorCode::kProtocol,
                "import region {} of {} bytes at {:#x} with rdma: not a range with its keys",
                to_underlying(info.id), info.size, base);
  }
  return key;
}

}  // namespace p2p::rdma
