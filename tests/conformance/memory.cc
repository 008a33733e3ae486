// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "conformance/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>

#include "conformance/pattern.h"

namespace p2p::conformance {

namespace {

constexpr std::size_t kGuardBytes = 128;
constexpr std::byte kGuard{0xa5};

RegionId next_region() {
  static std::atomic<std::uint32_t> last{0};
  return RegionId{++last};
}

}  // namespace

Memory::Memory(Transport& transport, std::size_t size, std::size_t misalignment, const RegionOptions& options)
    : transport_(transport), storage_(size + 64 + misalignment + 2 * kGuardBytes, kGuard), size_(size) {
  const auto start = reinterpret_cast<std::uint64_t>(storage_.data()) + kGuardBytes;
  data_ = storage_.data() + kGuardBytes + (64 - start % 64) % 64 + misalignment;
  set_all(bytes(), std::byte{});
  enroll(options);
}

Memory::Memory(Transport& transport, std::span<std::byte> part)
    : transport_(transport), data_(part.data()), size_(part.size()) {
  enroll({});
}

void Memory::enroll(const RegionOptions& options) {
  RegionInfo info{.id = next_region(), .key = {}, .base = data_, .size = size_, .place = {}};
  info.restrict_to(options);
  std::random_device random;
  for (std::byte& byte : info.key) byte = static_cast<std::byte>(random());
  auto registration = transport_.register_memory(info);
  if (!registration) {
    ADD_FAILURE() << registration.error().message;
    std::abort();
  }
  registration_ = *std::move(registration);
}

Memory::~Memory() {
  revoke();
  EXPECT_TRUE(guards_are_intact());
}

void Memory::revoke() {
  if (!revoked_) transport_.revoke_memory(*registration_);
  revoked_ = true;
  EXPECT_TRUE(registration_->wait_unaccessed(std::chrono::steady_clock::now() + std::chrono::seconds(30)));
}

RegionOffer Memory::offer() const { return offer_of(transport_, *registration_); }

RegionOffer offer_of(const Transport& transport, const Registration& registration) {
  RegionOffer offer{registration.info(), {}};
  if (transport.capabilities().needs_exported_key) {
    offer.exported = registration.export_key();
  } else {
    offer.info.base = nullptr;
    offer.info.size = 0;
  }
  return offer;
}

bool Memory::guards_are_intact() const {
  const auto is_guard = [](std::byte byte) { return byte == kGuard; };
  if (storage_.empty()) return true;
  return std::all_of(storage_.data(), static_cast<const std::byte*>(data_), is_guard) &&
         std::all_of(static_cast<const std::byte*>(data_ + size_), storage_.data() + storage_.size(),
                     is_guard);
}

}  // namespace p2p::conformance
