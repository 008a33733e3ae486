// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/channel_address.h"

#include <algorithm>

#include "base/error.h"
#include "p2p/options.h"

namespace p2p::nccl_net {
namespace {

constexpr std::uint32_t kMagic = 0x746e6363;  // "ccnt"
constexpr std::uint32_t kVersion = 4;
constexpr std::size_t kMaxName = 255;

}  // namespace

Bytes ChannelAddress::encode() const {
  const std::string_view name = std::string_view(nic).substr(0, kMaxName);
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.put(kMagic);
  writer.put(kVersion);
  writer.put(static_cast<std::uint32_t>(chunk_bytes));
  writer.put(ByteView(handle));
  writer.put(static_cast<std::uint8_t>(name.size()));
  writer.put(as_bytes(name));
  return bytes;
}

Result<ChannelAddress> ChannelAddress::decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  ChannelAddress address;
  const bool known = reader.get<std::uint32_t>() == kMagic && reader.get<std::uint32_t>() == kVersion;
  address.chunk_bytes = reader.get<std::uint32_t>();
  const auto handle = reader.take(address.handle.size());
  const auto name = reader.take(reader.get<std::uint8_t>());
  if (!known || !reader.ok() || reader.left() != 0 ||
      address.chunk_bytes < NcclNetOptions::kLeastChunkBytes) {
    return fail(ErrorCode::kProtocol, "{} bytes that are no address of a net plugin channel", bytes.size());
  }
  std::ranges::copy(handle, address.handle.begin());
  address.nic.assign(reinterpret_cast<const char*>(name.data()), name.size());
  return address;
}

const Device& device_towards(const std::vector<Device>& devices, const Device& own, const std::string& nic) {
  if (nic.empty() || own.properties.name == nic) return own;
  const auto same = [&](const Device& device) { return device.properties.name == nic; };
  const auto found = std::ranges::find_if(devices, same);
  return found == devices.end() ? own : *found;
}

}  // namespace p2p::nccl_net
