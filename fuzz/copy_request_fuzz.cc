// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "transport/served_copies.h"

namespace {

using namespace p2p;

constexpr std::uint64_t kBase = 0x10000000;
constexpr std::uint64_t kSize = 32768;
constexpr RegionKey kKey{std::byte{1}, std::byte{2}, std::byte{3}};
constexpr ServedCopies::Limits kLimits{.batches = 4, .segments = 1024, .bytes = std::uint64_t{1} << 20};

/// Whatever is copied for a peer lies in the region, and where the peer said.
void check_batch(const CopyRequest& request, const Batch& batch) {
  auto asked = request.pieces.begin();
  if (batch.bytes == 0 || batch.bytes > kLimits.bytes || batch.operation == request.operation) std::abort();
  batch.for_each_piece([&](const Segment& piece) {
    const auto address = reinterpret_cast<std::uint64_t>(piece.local);
    if (address < kBase || piece.size > kSize || address - kBase > kSize - piece.size) std::abort();
    if (piece.remote != asked->mine || piece.remote + piece.size < piece.remote) std::abort();
    ++asked;
  });
  if (asked != request.pieces.end()) std::abort();
}

void check_served(const CopyRequest& request) {
  const auto table = std::make_shared<RegistrationTable>();
  table->add(std::make_shared<Registration>(RegionInfo{.id = RegionId{1},
                                                       .key = kKey,
                                                       .base = reinterpret_cast<std::byte*>(kBase),
                                                       .size = kSize,
                                                       .place = {}}));
  ServedCopies served(PeerAccess(table, "the peer"), kLimits);
  if (!served.add(request)) return;                       // too long
  if (request.last && served.add(request)) std::abort();  // twice
  const auto copy = served.take();
  if ((copy != nullptr) != request.last || served.empty() != request.last) std::abort();
  if (copy && copy->number != request.batch) std::abort();
  if (copy && copy->status) check_batch(request, copy->batch());
}

}  // namespace

/// What one channel says to the other about copies: read as it was written, and served within bounds.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto message = decode_copy_message({reinterpret_cast<const std::byte*>(data), size});
  if (!message) return 0;
  const auto again = decode_copy_message(std::visit([](const auto& said) { return encode(said); }, *message));
  if (!again || again->index() != message->index()) std::abort();
  if (const auto* const request = std::get_if<CopyRequest>(&*message)) check_served(*request);
  return 0;
}
