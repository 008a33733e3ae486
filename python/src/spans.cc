// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "spans.h"

#include <bit>
#include <cstring>
#include <string>

#include "errors.h"

namespace p2p::python {
namespace {

static_assert(std::endian::native == std::endian::little, "descriptors are read in place");

// RegionDescriptor's layout: what a narrowed copy may change.
constexpr std::size_t kShortSizeAt = 8;
constexpr std::size_t kFixedAt = 12;
constexpr std::size_t kLongSizeAt = 48;
constexpr std::size_t kTailAt = 56;
constexpr std::size_t kRegionAt = 16;
constexpr std::uint32_t kSizeIsLong = 0xffffffff;

template <class T>
T load(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

bool same_region(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::memcmp(a.data() + kFixedAt, b.data() + kFixedAt, kLongSizeAt - kFixedAt) == 0 &&
         std::memcmp(a.data() + kTailAt, b.data() + kTailAt, RegionDescriptor::kBytes - kTailAt) == 0;
}

}  // namespace

Result<Recycled<LocalSpan>> local_spans(const Numbers& ids, const Numbers& addresses, const Numbers& sizes,
                                        std::optional<std::size_t> num_iovs) {
  const Result<std::size_t> count = same_length({ids.size(), addresses.size(), sizes.size()}, num_iovs);
  if (!count) return tl::unexpected(count.error());
  Recycled<LocalSpan> spans;
  spans->reserve(*count);
  for (std::size_t i = 0; i < *count; ++i) spans->push_back(local_span(ids[i], addresses[i], sizes[i]));
  return spans;
}

Result<RemoteRegionId> Importer::region_of(std::span<const std::byte> blob) {
  Known& known = known_[load<std::uint32_t>(blob, kRegionAt) % kKnown];
  if (known.region != RemoteRegionId{} && same_region(blob, known.blob)) return known.region;
  const Result<RegionDescriptor> descriptor = RegionDescriptor::parse(blob);
  if (!descriptor) return tl::unexpected(descriptor.error());
  const Result<RemoteRegionId> region = connection_.import_region(*descriptor);
  if (!region) return region;
  std::memcpy(known.blob.data(), blob.data(), RegionDescriptor::kBytes);
  known.region = *region;
  return region;
}

Result<RemoteSpan> Importer::operator()(std::span<const std::byte> blob, std::size_t size) {
  const Result<RemoteRegionId> region = region_of(blob);
  if (!region) return tl::unexpected(region.error());
  const auto short_size = load<std::uint32_t>(blob, kShortSizeAt);
  const std::uint64_t described =
      short_size == kSizeIsLong ? load<std::uint64_t>(blob, kLongSizeAt) : short_size;
  if (size > described) {
    return failure(
        ErrorCode::kOutOfRange,
        "move " + std::to_string(size) + " bytes: the peer's blob describes " + std::to_string(described));
  }
  return RemoteSpan{.region = *region, .address = load<std::uint64_t>(blob, 0), .size = size};
}

Result<Recycled<RemoteSpan>> remote_spans(const Connection& connection, const Blobs& blobs,
                                          const Numbers& sizes) {
  Recycled<RemoteSpan> spans;
  spans->reserve(blobs.size());
  Importer importer(connection);
  for (std::size_t i = 0; i < blobs.size(); ++i) {
    Result<RemoteSpan> span = importer(blobs[i], sizes[i]);
    if (!span) return tl::unexpected(std::move(span.error()));
    spans->push_back(*span);
  }
  return spans;
}

}  // namespace p2p::python
