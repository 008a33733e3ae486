// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "p2p/memory.h"
#include "p2p/result.h"
#include "transport/batch.h"

/// How a channel asks its twin to copy between memory of the twin's process and its own, for transports whose
/// peer's memory is out of this side's reach or is copied faster by its owner. Byte table in docs/wire.md,
/// section "Copies by the owner".
namespace p2p {

/// Pieces of one request. With as many regions it still is one block of a ring (message_listener.h).
inline constexpr std::size_t kMaxRequestPieces = 1024;

/// Asks the owner to copy one batch, or a part of one.
struct CopyRequest {
  struct Region {
    RegionId id{};
    RegionKey key{};
  };
  struct Piece {
    std::uint64_t theirs = 0;  ///< address in the receiver's process
    std::uint64_t mine = 0;    ///< address in the sender's
    std::uint32_t size = 0;
    std::uint32_t region = 0;  ///< which one of `regions` `theirs` lies in
  };
  std::uint64_t batch = 0;  ///< the sender's number
  Operation operation = Operation::kWrite;
  bool last = true;  ///< no other request of this batch follows
  RegionId mine{};   ///< of the sender; 0 where the receiver needs no more than addresses
  std::vector<Region> regions;
  std::vector<Piece> pieces;
};

/// How a batch ended: nothing is copied for it any more.
struct CopyOutcome {
  std::uint64_t batch = 0;
  Status status;
};

using CopyMessage = std::variant<CopyRequest, CopyOutcome>;

/// The first byte of a transport's other messages is at least this.
inline constexpr std::uint8_t kFirstOwnKind = 3;

Bytes encode(const CopyRequest& request);
/// kPeerGone, which would say that this very channel is lost, goes as kUnavailable.
Bytes encode(const CopyOutcome& outcome);

/// kProtocol unless the bytes are what `encode` made of a request that RequestList makes, or of an outcome.
Result<CopyMessage> decode_copy_message(ByteView bytes);

/// Cuts what the owner is to copy for one batch into requests.
class RequestList {
 public:
  RequestList(std::uint64_t batch, Operation operation) : batch_(batch), operation_(operation) {}

  /// `size` is below 4 GiB.
  void add(const RemoteKey& key, std::uint64_t theirs, RegionId mine, std::uint64_t local,
           std::uint64_t size);

  /// In the order in which they are to be sent. At least one piece was added.
  const std::vector<CopyRequest>& requests() const { return requests_; }

 private:
  struct Listed {
    const RemoteKey* key = nullptr;
    std::uint32_t region = 0;
  };
  std::uint64_t batch_;
  Operation operation_;
  std::vector<CopyRequest> requests_;
  std::array<Listed, 8> listed_{};  // the latest regions of the last request
};

}  // namespace p2p
