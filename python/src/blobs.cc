// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "blobs.h"

#include <bit>
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

// Word by word: for so few bytes a call of memcmp takes longer, and lists have tens of thousands.
bool same_region(std::span<const std::byte> a, std::span<const std::byte> b) {
  static_assert(kFixedAt + sizeof(std::uint32_t) == kRegionAt && (kLongSizeAt - kRegionAt) % 8 == 0 &&
                kTailAt + sizeof(std::uint64_t) == RegionDescriptor::kBytes);
  const auto differ = [&](std::size_t at) { return load<std::uint64_t>(a, at) ^ load<std::uint64_t>(b, at); };
  std::uint64_t difference = load<std::uint32_t>(a, kFixedAt) ^ load<std::uint32_t>(b, kFixedAt);
  for (std::size_t at = kRegionAt; at != kLongSizeAt; at += 8) difference |= differ(at);
  return (difference | differ(kTailAt)) == 0;
}

// A blob alone is a list of one.
std::size_t count_of(const Blob&) { return 1; }
std::size_t count_of(const Blobs& blobs) { return blobs.size(); }
std::size_t size_at(const Blob& blob, std::size_t) { return blob.size(); }
std::size_t size_at(const Blobs& blobs, std::size_t index) { return blobs[index].size(); }
std::span<const std::byte> bytes_at(const Blob& blob, std::size_t) { return blob.bytes(); }
std::span<const std::byte> bytes_at(const Blobs& blobs, std::size_t index) { return blobs[index]; }

[[noreturn]] void refuse(std::string message) {
  raise(Error{ErrorCode::kInvalidArgument, std::move(message)});
}

template <class List>
void check_list(BlobKind kind, const List& blobs, std::size_t count) {
  raise_unless(same_length({count_of(blobs)}, count).map([](std::size_t) {}));
  const bool plain = kind == BlobKind::kDescriptor;
  const std::size_t bytes = plain ? RegionDescriptor::kBytes : sizeof(Ticket);
  for (std::size_t i = 0; i < count; ++i) {
    if (size_at(blobs, i) == bytes) continue;
    refuse((plain ? "meta must be exactly 64 bytes (serialized FifoItem), not "
                  : "info must be exactly 88 bytes (of advertise_ipc), not ") +
           std::to_string(size_at(blobs, i)));
  }
}

template <class List>
Status import_list(const Connection& connection, BlobKind kind, const List& blobs,
                   const std::vector<LocalSpan>& local, std::vector<RemoteSpan>& into) {
  into.resize(local.size());
  Importer importer(connection);
  for (std::size_t i = 0; i < local.size(); ++i) {
    const auto blob = bytes_at(blobs, i);
    if (kind == BlobKind::kTicket && !Ticket::is_one(blob)) refuse("info is not what advertise_ipc gave");
    into[i].size = local[i].size;
    const Status imported = importer.locate(blob.first(RegionDescriptor::kBytes), into[i]);
    if (!imported) return imported;
  }
  return {};
}

}  // namespace

Status Importer::learn(std::span<const std::byte> blob, Known& known) {
  const Result<RegionDescriptor> descriptor = RegionDescriptor::parse(blob);
  if (!descriptor) return tl::unexpected(descriptor.error());
  const Result<RemoteRegionId> region = connection_.import_region(*descriptor);
  if (!region) return tl::unexpected(region.error());
  std::memcpy(known.blob.data(), blob.data(), RegionDescriptor::kBytes);
  known.region = *region;
  return {};
}

Status Importer::locate(std::span<const std::byte> blob, RemoteSpan& span) {
  Known& known = known_[load<std::uint32_t>(blob, kRegionAt) % kKnown];
  if (known.region == RemoteRegionId{} || !same_region(blob, known.blob)) {
    if (Status learned = learn(blob, known); !learned) return tl::unexpected(std::move(learned.error()));
  }
  const auto short_size = load<std::uint32_t>(blob, kShortSizeAt);
  const std::uint64_t described =
      short_size == kSizeIsLong ? load<std::uint64_t>(blob, kLongSizeAt) : short_size;
  if (span.size > described) {
    return failure(ErrorCode::kOutOfRange, "move " + std::to_string(span.size) +
                                               " bytes: the peer's blob describes " +
                                               std::to_string(described));
  }
  span.region = known.region;
  span.address = load<std::uint64_t>(blob, 0);
  return {};
}

void check_blobs(BlobKind kind, const Blob& blob, std::size_t count) { check_list(kind, blob, count); }
void check_blobs(BlobKind kind, const Blobs& blobs, std::size_t count) { check_list(kind, blobs, count); }

Status import_blobs(const Connection& connection, BlobKind kind, const Blob& blob,
                    const std::vector<LocalSpan>& local, std::vector<RemoteSpan>& into) {
  return import_list(connection, kind, blob, local, into);
}

Status import_blobs(const Connection& connection, BlobKind kind, const Blobs& blobs,
                    const std::vector<LocalSpan>& local, std::vector<RemoteSpan>& into) {
  return import_list(connection, kind, blobs, local, into);
}

}  // namespace p2p::python
