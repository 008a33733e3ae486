// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "transport/cma/copy_request.h"
#include "transport/cma/served_copies.h"

namespace {

using namespace p2p;

constexpr std::uint64_t kBase = 0x10000000;
constexpr std::uint64_t kSize = 32768;
constexpr RegionKey kKey{std::byte{1}, std::byte{2}, std::byte{3}};

/// Whatever is copied for a peer lies in the region, and in one slot of the peer's.
Status check_batch(const cma::CopyRequest& request, const Batch& batch) {
  std::uint64_t slot = request.slot;
  if (batch.bytes == 0 || batch.bytes > cma::kMaxBatchBytes || batch.operation == request.operation)
    std::abort();
  batch.for_each_piece([&](const Segment& piece) {
    const auto address = reinterpret_cast<std::uint64_t>(piece.local);
    if (address < kBase || piece.size > kSize || address - kBase > kSize - piece.size) std::abort();
    if (std::exchange(slot, slot + piece.size) != piece.remote || slot <= piece.remote) std::abort();
  });
  if (slot != request.slot + batch.bytes) std::abort();
  return {};
}

void check_served(const cma::CopyRequest& request) {
  const auto table = std::make_shared<RegistrationTable>();
  table->add(std::make_shared<Registration>(RegionInfo{.id = RegionId{1},
                                                       .key = kKey,
                                                       .base = reinterpret_cast<std::byte*>(kBase),
                                                       .size = kSize,
                                                       .place = {}}));
  cma::ServedCopies served(PeerAccess(table, "the peer"));
  if (!served.add(request)) std::abort();
  if (served.add(request)) std::abort();  // twice
  const auto outcome = served.serve([&](const Batch& batch) { return check_batch(request, batch); });
  if (outcome.batch != request.batch || !served.empty()) std::abort();
}

}  // namespace

/// What one channel of cma says to the other: read as it was written, and served within bounds.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto message = cma::decode_message({reinterpret_cast<const std::byte*>(data), size});
  if (!message) return 0;
  const auto again = cma::decode_message(cma::encode(*message));
  if (!again || again->index() != message->index()) std::abort();
  if (const auto* const request = std::get_if<cma::CopyRequest>(&*message)) check_served(*request);
  return 0;
}
