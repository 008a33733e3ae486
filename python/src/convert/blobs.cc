// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "convert/blobs.h"

#include <bit>
#include <string>

#include "convert/errors.h"

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
T load(const std::byte* bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes + at, sizeof value);
  return value;
}

// Word by word: for so few bytes a call of memcmp takes longer, and lists have tens of thousands.
bool same_region(const std::byte* a, const std::byte* b) {
  static_assert(kFixedAt + sizeof(std::uint32_t) == kRegionAt && (kLongSizeAt - kRegionAt) % 8 == 0 &&
                kTailAt + sizeof(std::uint64_t) == RegionDescriptor::kBytes);
  const auto differ = [&](std::size_t at) { return load<std::uint64_t>(a, at) ^ load<std::uint64_t>(b, at); };
  std::uint64_t difference = load<std::uint32_t>(a, kFixedAt) ^ load<std::uint32_t>(b, kFixedAt);
  for (std::size_t at = kRegionAt; at != kLongSizeAt; at += 8) difference |= differ(at);
  return (difference | differ(kTailAt)) == 0;
}

std::uint64_t described_by(const std::byte* blob) {
  const auto short_size = load<std::uint32_t>(blob, kShortSizeAt);
  return short_size == kSizeIsLong ? load<std::uint64_t>(blob, kLongSizeAt) : short_size;
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

inline bool Importer::locate_known(const std::byte* blob, RemoteSpan& span) const {
  const Known& known = known_[load<std::uint32_t>(blob, kRegionAt) % kKnown];
  if (known.region == RemoteRegionId{} || !same_region(blob, known.blob.data())) return false;
  if (span.size > described_by(blob)) return false;
  span.region = known.region;
  span.address = load<std::uint64_t>(blob, 0);
  return true;
}

Status Importer::locate_new(std::span<const std::byte> blob, RemoteSpan& span) {
  Known& known = known_[load<std::uint32_t>(blob.data(), kRegionAt) % kKnown];
  if (Status learned = learn(blob, known); !learned) return learned;
  if (locate_known(blob.data(), span)) return {};
  return failure(ErrorCode::kOutOfRange, "move " + std::to_string(span.size) +
                                             " bytes: the peer's blob describes " +
                                             std::to_string(described_by(blob.data())));
}

Status Importer::locate(std::span<const std::byte, RegionDescriptor::kBytes> blob, RemoteSpan& span) {
  return locate_known(blob.data(), span) ? Status{} : locate_new(blob, span);
}

namespace {

/// Where a list has it; nothing for a blob alone.
std::string entry(std::size_t index, std::size_t of) {
  return of == 1 ? "" : "entry " + std::to_string(index) + " of " + std::to_string(of) + ": ";
}

/// Reads the blobs of one call.
class Reading {
 public:
  Reading(const Connection& connection, BlobKind kind, std::size_t count)
      : importer_(connection),
        ticket_(kind == BlobKind::kTicket),
        bytes_(ticket_ ? sizeof(Ticket) : RegionDescriptor::kBytes),
        count_(count) {}

  /// One step of the list, from the entry `first` on.
  Status read(std::size_t first, std::span<const BlobView> blobs, const LocalSpan* local, RemoteSpan* into) {
    for (std::size_t i = 0; i < blobs.size(); ++i) {
      into[i].size = local[i].size;
      if (is_one(blobs[i]) && importer_.locate_known(blobs[i].first, into[i])) continue;
      if (!is_one(blobs[i])) refuse(blobs[i], first + i);
      const std::span<const std::byte, RegionDescriptor::kBytes> bytes(blobs[i].first,
                                                                       RegionDescriptor::kBytes);
      if (Status located = importer_.locate(bytes, into[i]); !located) {
        located.error().message.insert(0, entry(first + i, count_));
        return located;
      }
    }
    return {};
  }

 private:
  bool is_one(const BlobView& blob) const {
    return blob.size == bytes_ && (!ticket_ || Ticket::is_one(blob.first));
  }

  [[noreturn]] void refuse(const BlobView& blob, std::size_t index) const {
    std::string why = "info is not what advertise_ipc gave";
    if (blob.size != bytes_) {
      why = (ticket_ ? "info must be exactly 88 bytes (of advertise_ipc), not "
                     : "meta must be exactly 64 bytes (serialized FifoItem), not ") +
            std::to_string(blob.size);
    }
    raise(Error{ErrorCode::kInvalidArgument, entry(index, count_) + why});
  }

  Importer importer_;
  const bool ticket_;
  const std::size_t bytes_;
  const std::size_t count_;
};

}  // namespace

Status import_blobs(const Connection& connection, BlobKind kind, const Blob& blob,
                    std::span<const LocalSpan> local, Recycled<RemoteSpan>& into) {
  const BlobView view = blob.view();
  LocalSpan all;
  for (const LocalSpan& span : local) all.size += span.size;
  RemoteSpan next;
  Status read = Reading(connection, kind, 1).read(0, {&view, 1}, &all, &next);
  if (!read) return read;
  const std::span<RemoteSpan> spans = into.resize(local.size());
  for (std::size_t i = 0; i != local.size(); ++i) {
    next.size = local[i].size;
    spans[i] = next;
    next.address += next.size;
  }
  return read;
}

Status import_blobs(const Connection& connection, BlobKind kind, const Blobs& blobs,
                    std::span<const LocalSpan> local, Recycled<RemoteSpan>& into) {
  const std::span<RemoteSpan> spans = into.resize(local.size());
  Reading reading(connection, kind, local.size());
  Blobs::Step step;
  Status status;
  for_each_step(local.size(), [&](std::size_t first, std::size_t count) {
    if (!status) return;
    status = reading.read(first, blobs.step(first, count, step), &local[first], &spans[first]);
  });
  return status;
}

}  // namespace p2p::python
