// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "tcpx/memory_descriptor.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/error.h"

namespace tcpx {
namespace {
constexpr std::uint32_t kMagic = 0x78706374;  // "tcpx"
constexpr std::uint16_t kVersion = 1;
}  // namespace

std::array<std::byte, TcpxMemoryDescriptor::kBytes> TcpxMemoryDescriptor::serialize() const {
  p2p::Bytes bytes;
  p2p::ByteWriter writer(bytes);
  writer.put(kMagic);
  writer.put(kVersion);
  writer.put(static_cast<std::uint8_t>(place.kind));
  writer.put(std::uint8_t{0});
  writer.put(mem_id);
  writer.put(address);
  writer.put(size);
  writer.put(static_cast<std::uint32_t>(place.device));
  writer.put(std::uint32_t{0});
  std::array<std::byte, kBytes> out{};
  std::ranges::copy(bytes, out.begin());
  return out;
}

p2p::Result<TcpxMemoryDescriptor> TcpxMemoryDescriptor::deserialize(std::span<const std::byte> bytes) {
  p2p::ByteReader reader(bytes);
  const bool known = reader.get<std::uint32_t>() == kMagic && reader.get<std::uint16_t>() == kVersion;
  const auto kind = reader.get<std::uint8_t>();
  const auto zero = reader.get<std::uint8_t>();
  TcpxMemoryDescriptor descriptor;
  descriptor.mem_id = reader.get<std::uint64_t>();
  descriptor.address = reader.get<std::uint64_t>();
  descriptor.size = reader.get<std::uint64_t>();
  descriptor.place.kind = static_cast<p2p::MemoryKind>(kind);
  descriptor.place.device = static_cast<std::int32_t>(reader.get<std::uint32_t>());
  const auto rest = reader.get<std::uint32_t>();
  const bool fits = descriptor.size <= ~descriptor.address;
  if (!known || !reader.ok() || reader.left() != 0 || kind > 1 || zero != 0 || rest != 0 || !fits) {
    return p2p::fail(p2p::ErrorCode::kInvalidArgument, "{} bytes that are no TCPX memory descriptor",
                     bytes.size());
  }
  return descriptor;
}

}  // namespace tcpx
