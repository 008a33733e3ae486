// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "convert/sequences.h"
#include "convert/spans.h"
#include "p2p/connection.h"

// What the owner of memory gives to those who are to reach it.

namespace p2p::python {

/// Of advertise(): a RegionDescriptor. Of advertise_ipc(): a Ticket.
enum class BlobKind { kDescriptor, kTicket };

/// What advertise_ipc gives: the region's descriptor, its length once more, and a mark. Little endian.
struct Ticket {
  static constexpr std::array<char, 8> kMark{'u', 'c', 'c', 'l', 'i', 'p', 'c', '1'};

  std::array<std::byte, RegionDescriptor::kBytes> descriptor{};
  std::uint64_t size = 0;
  std::uint64_t flags = 0;
  std::array<char, 8> mark = kMark;

  /// Of bytes of the right length.
  static bool is_one(const std::byte* bytes) {
    constexpr Ticket kNone;
    return std::memcmp(bytes + offsetof(Ticket, flags), &kNone.flags,
                       sizeof kNone.flags + sizeof kNone.mark) == 0;
  }
};
static_assert(sizeof(Ticket) == 88 &&
              offsetof(Ticket, mark) == offsetof(Ticket, flags) + sizeof(std::uint64_t));

/// Turns 64-byte blobs into spans of a connection. The blobs of one region differ in address and size only,
/// so the connection is asked once a region, not once a blob.
class Importer {
 public:
  explicit Importer(const Connection& connection) : connection_(connection) {}

  /// Makes `span`, which has its size, the first bytes of what the blob describes; kOutOfRange if it
  /// describes fewer.
  Status locate(std::span<const std::byte, RegionDescriptor::kBytes> blob, RemoteSpan& span);

  /// The same where it takes no more than a look; false, and nothing, else. In blobs.cc alone.
  inline bool locate_known(const std::byte* blob, RemoteSpan& span) const;

 private:
  struct Known {
    std::array<std::byte, RegionDescriptor::kBytes> blob{};
    RemoteRegionId region{};  ///< 0: empty
  };
  static constexpr std::size_t kKnown = 64;

  /// Asks the connection about a region that has not come yet.
  Status learn(std::span<const std::byte> blob, Known& known);

  Status locate_new(std::span<const std::byte> blob, RemoteSpan& span);

  const Connection& connection_;
  std::array<Known, kKnown> known_{};
};

/// How many spans are described. A blob alone describes all, one after another.
inline std::size_t count_of(const Blob&, std::span<const LocalSpan> local) { return local.size(); }
inline std::size_t count_of(const Blobs& blobs, std::span<const LocalSpan>) { return blobs.size(); }

/// As many spans as there are in `local`, of their sizes. Raises for what is no blob of that kind.
Status import_blobs(const Connection& connection, BlobKind kind, const Blob& blob,
                    std::span<const LocalSpan> local, Recycled<RemoteSpan>& into);
Status import_blobs(const Connection& connection, BlobKind kind, const Blobs& blobs,
                    std::span<const LocalSpan> local, Recycled<RemoteSpan>& into);

}  // namespace p2p::python
