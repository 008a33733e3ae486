// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "support/devices.h"
#include "transport/cuda_ipc/memory/key.h"
#include "transport/cuda_ipc/requests/channel_messages.h"
#include "transport/registry.h"

namespace {

using namespace p2p;

constexpr std::uint64_t kBase = 0x10000000;
constexpr std::uint64_t kSize = 32768;
constexpr RegionKey kKey{std::byte{1}, std::byte{2}, std::byte{3}};

/// What a peer names: a region, its key and a range; then whatever it says that another owner exported.
struct Claim {
  RegionInfo region;
  std::uint64_t address = 0;
  ByteView exported;
};

class Input {
 public:
  explicit Input(ByteView bytes) : bytes_(bytes) {}

  template <class T>
  T take() {
    T value{};
    const std::size_t size = std::min(sizeof value, bytes_.size());
    std::memcpy(&value, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
    return value;
  }
  ByteView rest() const { return bytes_; }

 private:
  ByteView bytes_;
};

Claim read_claim(ByteView bytes) {
  Input input(bytes);
  Claim claim;
  claim.region.id = RegionId{input.take<std::uint8_t>()};
  claim.region.key = input.take<RegionKey>();
  claim.address = input.take<std::uint64_t>();
  claim.region.size = input.take<std::uint64_t>();
  claim.region.base = reinterpret_cast<std::byte*>(claim.address);
  claim.exported = input.rest();
  return claim;
}

/// An access is granted for the true id and key within the true range, and never otherwise.
void check_access(const Claim& claim) {
  RegistrationTable table;
  table.add(std::make_shared<Registration>(RegionInfo{
      .id = RegionId{1}, .key = kKey, .base = reinterpret_cast<std::byte*>(kBase), .size = kSize}));
  const bool within = claim.address >= kBase && claim.address - kBase <= kSize &&
                      claim.region.size <= kSize - (claim.address - kBase);
  const bool granted = claim.region.id == RegionId{1} && claim.region.key == kKey && within;
  if (table.find(claim.region.id, claim.region.key, claim.address, claim.region.size).has_value() !=
      granted) {
    std::abort();
  }
}

/// Every transport either takes what an owner exported, for that very region, or says why not.
void check_imports(const Claim& claim) {
  static const auto transports = [] {
    const auto devices = test_devices();
    std::vector<std::unique_ptr<Transport>> made;
    for (const auto& entry : builtin_transports().entries) made.push_back(entry.make({}, devices));
    return made;
  }();
  for (const auto& transport : transports) {
    const auto key = transport->import_region(claim.region, claim.exported);
    if (key ? (*key)->info().size != claim.region.size : key.error().message.empty()) std::abort();
  }
}

void check_shared_memory(ByteView exported) {
  const auto key = cuda_ipc::decode_key(exported);
  if (!key) return;
  const auto again = cuda_ipc::decode_key(cuda_ipc::encode(*key));
  if (!again || again->memory.has_value() != key->memory.has_value() ||
      again->chunks.has_value() != key->chunks.has_value() || again->is_private != key->is_private) {
    std::abort();
  }
}

/// What two channels say to each other: read as it was written.
void check_message(ByteView bytes) {
  const auto message = cuda_ipc::decode_message(bytes);
  if (!message) return;
  const auto again = cuda_ipc::decode_message(cuda_ipc::encode(*message));
  if (!again || again->index() != message->index()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Claim claim = read_claim({reinterpret_cast<const std::byte*>(data), size});
  check_access(claim);
  check_imports(claim);
  check_shared_memory(claim.exported);
  check_message(claim.exported);
  return 0;
}
