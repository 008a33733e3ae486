// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "base/bytes.h"
#include "base/error.h"
#include "p2p/memory.h"

namespace p2p {
namespace {

constexpr std::uint32_t kMagic = 0x31503250;  // "P2P1"

/// In the short size field: see the size at offset 48.
constexpr std::uint32_t kLongSize = 0xffffffff;

bool place_exists(MemoryPlace place) {
  switch (place.kind) {
    case MemoryKind::kHost: return place.device == -1;
    case MemoryKind::kCuda: return place.device >= 0;
  }
  return false;
}

}  // namespace

std::array<std::byte, RegionDescriptor::kBytes> RegionDescriptor::serialize() const {
  Bytes bytes;
  bytes.reserve(kBytes);
  ByteWriter out(bytes);
  out.put(address);
  out.put(static_cast<std::uint32_t>(std::min<std::uint64_t>(size, kLongSize)));
  out.put(static_cast<std::uint8_t>(place.kind));
  out.put(std::uint8_t{0});
  out.put(static_cast<std::uint16_t>(place.device));
  out.put(static_cast<std::uint32_t>(region));
  out.put(std::uint32_t{0});
  out.put(ByteView(key));
  out.put(incarnation);
  out.put(size);
  out.put(std::uint32_t{0});
  out.put(kMagic);
  std::array<std::byte, kBytes> serialized{};
  std::copy_n(bytes.begin(), kBytes, serialized.begin());
  return serialized;
}

Result<RegionDescriptor> RegionDescriptor::parse(std::span<const std::byte> bytes) {
  if (bytes.size() != kBytes) {
    return fail(ErrorCode::kInvalidArgument, "parse a region descriptor: {} bytes, not {}", bytes.size(),
                kBytes);
  }
  RegionDescriptor descriptor;
  ByteReader in(bytes);
  descriptor.address = in.get<std::uint64_t>();
  const auto short_size = in.get<std::uint32_t>();
  descriptor.place.kind = static_cast<MemoryKind>(in.get<std::uint8_t>());
  std::uint32_t zeros = in.get<std::uint8_t>();
  descriptor.place.device = static_cast<std::int16_t>(in.get<std::uint16_t>());
  descriptor.region = RegionId{in.get<std::uint32_t>()};
  zeros |= in.get<std::uint32_t>();
  const ByteView key = in.take(descriptor.key.size());
  std::copy(key.begin(), key.end(), descriptor.key.begin());
  descriptor.incarnation = in.get<std::uint64_t>();
  const auto long_size = in.get<std::uint64_t>();
  zeros |= in.get<std::uint32_t>();
  const auto magic = in.get<std::uint32_t>();
  // Programs that narrow a descriptor edit only the short size, so it counts unless it points to the other.
  descriptor.size = short_size == kLongSize ? long_size : short_size;

  const char* wrong = nullptr;
  if (magic != kMagic) {
    wrong = "its last 4 bytes are not the magic number";
  } else if (zeros != 0) {
    wrong = "bytes that must be zero are not";
  } else if (!place_exists(descriptor.place)) {
    wrong = "it names no kind of memory or device that there is";
  } else if (descriptor.region == RegionId{0}) {
    wrong = "it names region 0, which does not exist";
  } else if (descriptor.size > std::numeric_limits<std::uint64_t>::max() - descriptor.address) {
    wrong = "its range runs past the end of the address space";
  }
  if (wrong != nullptr) return fail(ErrorCode::kInvalidArgument, "parse a region descriptor: {}", wrong);
  return descriptor;
}

}  // namespace p2p
