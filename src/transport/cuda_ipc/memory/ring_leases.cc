// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/memory/ring_leases.h"

#include "base/error.h"
#include "drivers/crypto/crypto.h"
#include "drivers/cuda/chunk.h"
#include "drivers/cuda/device.h"
#include "transport/cuda_ipc/memory/regions.h"

namespace p2p::cuda_ipc {
namespace {

// Of one endpoint, 768 MiB in all: a peer process needs one for each GPU here whose memory is private.
constexpr std::size_t kMostRings = 16;

/// A ring as memory of the peer's would be, and this process's own.
class LeasedKey : public PeerMemory {
 public:
  LeasedKey(const RegionInfo& region, ExportedKey key, std::shared_ptr<LeasedRing> ring,
            std::shared_ptr<Mappings> mappings)
      : PeerMemory(region, std::move(key), ring->device(), std::move(mappings), true),
        ring_(std::move(ring)) {}

 private:
  const std::shared_ptr<LeasedRing> ring_;
};

}  // namespace

Result<ChunkServer::Lease> RingLeases::lease(int device) {
  const auto uuid = cuda::uuid_of(device);
  if (!uuid) return tl::unexpected(uuid.error());
  Entry entry;
  if (const Status drawn = crypto::random_bytes(entry.token); !drawn) return tl::unexpected(drawn.error());
  std::uint64_t number = 0;
  {
    const MutexLock lock(mutex_);
    std::erase_if(rings_, [](const auto& each) { return each.second.ring.expired(); });
    if (rings_.size() >= kMostRings) {
      return fail(ErrorCode::kUnavailable, "{} peers have a ring here, and no more get one", kMostRings);
    }
    number = ++last_;
  }
  ChunkServer::Lease lease;
  lease.descriptors.resize(2);
  auto chunk = cuda::make_chunk(device, kLentBytes);
  if (!chunk) return tl::unexpected(std::move(chunk.error()));
  auto window = cuda::Window::reserve(kLentBytes);
  if (!window) return tl::unexpected(std::move(window.error()));
  if (const Status added = window->add(*chunk, kLentBytes); !added) return tl::unexpected(added.error());
  if (const Status allowed = window->allow(device); !allowed) return tl::unexpected(allowed.error());
  auto words = RingMemory::create(lease.descriptors[1], kRingWords);
  if (!words) return tl::unexpected(std::move(words.error()));
  lease.descriptors[0] = std::move(*chunk);
  auto ring = std::make_shared<LeasedRing>(device, std::move(*window), std::move(*words));
  ByteWriter out(lease.words);
  out.put(number);
  out.put(ByteView(entry.token));
  out.put(ByteView(*uuid));
  out.put(reinterpret_cast<std::uint64_t>(ring->data()));
  entry.ring = ring;
  lease.kept = std::move(ring);
  const MutexLock lock(mutex_);
  rings_.emplace(number, std::move(entry));
  return lease;
}

Result<std::shared_ptr<LeasedRing>> RingLeases::find(std::uint64_t number, const Token& token) const {
  const MutexLock lock(mutex_);
  const auto found = rings_.find(number);
  if (found != rings_.end() && crypto::equal(found->second.token, token)) {
    if (auto ring = found->second.ring.lock()) return ring;
  }
  return fail(ErrorCode::kNotFound, "a cuda_ipc peer names a ring that it does not have");
}

std::unique_ptr<RemoteKey> RingLeases::key_of(std::shared_ptr<LeasedRing> ring, RegionId region) const {
  const RegionInfo info{.id = region,
                        .key = {},
                        .base = ring->data(),
                        .size = kLentBytes,
                        .place = {MemoryKind::kCuda, ring->device()}};
  ExportedKey key;
  key.chunks = ChunkedMemory{.owner = process_,
                             .device = {},
                             .ticket = {},
                             .base = reinterpret_cast<std::uint64_t>(ring->data()),
                             .size = kLentBytes,
                             .count = 1};
  return std::make_unique<LeasedKey>(info, std::move(key), std::move(ring), mappings_);
}

}  // namespace p2p::cuda_ipc
