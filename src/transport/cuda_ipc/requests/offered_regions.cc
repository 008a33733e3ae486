// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/requests/offered_regions.h"

#include "base/error.h"
#include "base/underlying.h"

namespace p2p::cuda_ipc {
namespace {

constexpr std::size_t kMaxOffers = std::size_t{1} << 16;

}  // namespace

Result<std::shared_ptr<OfferedRegion>> OfferedRegions::insert(RegionId region) {
  if (regions_.size() >= kMaxOffers) {
    return fail(ErrorCode::kProtocol, "a cuda_ipc peer offers more than {} regions", kMaxOffers);
  }
  auto offered = std::make_shared<OfferedRegion>();
  regions_.insert_or_assign(region, offered);
  return offered;
}

Status OfferedRegions::add(RegionOffer offer) {
  auto added = insert(offer.region);
  if (!added) return tl::unexpected(added.error());
  const RegionInfo region{.id = offer.region,
                          .key = {},
                          // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the peer's process
                          .base = reinterpret_cast<std::byte*>(offer.base),
                          .size = offer.size,
                          .place = {MemoryKind::kCuda, 0}};
  import_(region, std::move(offer.exported),
          [offered = std::move(*added)](Result<std::unique_ptr<RemoteKey>> key) {
            if (key) {
              offered->key = std::move(*key);
            } else {
              offered->error = std::move(key.error());
            }
            offered->settled.store(true, std::memory_order_release);
          });
  return {};
}

Status OfferedRegions::add_leased(RegionId region, std::shared_ptr<const RemoteKey> key) {
  const auto added = insert(region);
  if (!added) return tl::unexpected(added.error());
  (*added)->key = std::move(key);
  (*added)->settled.store(true, std::memory_order_release);
  return {};
}

void OfferedRegions::remove(RegionId region) { regions_.erase(region); }

Result<std::shared_ptr<const OfferedRegion>> OfferedRegions::find(RegionId region) const {
  const auto offered = regions_.find(region);
  if (offered != regions_.end()) return offered->second;
  return fail(ErrorCode::kProtocol, "a cuda_ipc peer wants copies of region {}, which it has not offered",
              to_underlying(region));
}

}  // namespace p2p::cuda_ipc
