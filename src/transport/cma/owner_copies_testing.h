// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "transport/cma/channel.h"
#include "transport/registration.h"

/// What the tests of copies by the owner are made of. Memory that is said to be a device's is host memory:
/// for a slot they are the same.
namespace p2p::cma {

inline std::shared_ptr<device::StagingPool> plain_pool() {
  return std::make_shared<device::StagingPool>(
      device::StagingPool::Limits{.slot_bytes = kMaxBatchBytes},
      [](std::size_t size, int) -> Result<std::shared_ptr<std::byte>> {
        return std::shared_ptr<std::byte>(new std::byte[size], std::default_delete<std::byte[]>());
      });
}

inline std::unique_ptr<Channel> open_channel(Role role, std::shared_ptr<const RegistrationTable> regions,
                                             const std::shared_ptr<device::StagingPool>& pool) {
  auto channel =
      CmaChannel::open({.role = role}, std::make_shared<device::Staging>(pool, kStagingShare, true),
                       PeerAccess(std::move(regions), "the peer"));
  EXPECT_TRUE(channel) << channel.error().message;
  return *std::move(channel);
}

inline RegionInfo info_of(std::uint32_t id, std::byte* base, std::uint64_t size) {
  RegionInfo info{.id = RegionId{id}, .key = {}, .base = base, .size = size, .place = {}};
  info.key.fill(static_cast<std::byte>(id));
  return info;
}

inline RegionInfo as_device_memory(Bytes& memory) {
  return {.base = memory.data(), .size = memory.size(), .place = {.kind = MemoryKind::kCuda, .device = -1}};
}

/// Bytes that depend on where they stand.
inline Bytes pattern(std::size_t size, unsigned seed) {
  Bytes bytes(size);
  std::uint32_t state = seed * 2654435761U + 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

}  // namespace p2p::cma
