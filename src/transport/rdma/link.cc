// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/rdma/link.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "drivers/crypto/crypto.h"

namespace p2p::rdma {
namespace {

constexpr unsigned kReceives = 2;
constexpr unsigned kPieces = 32;  // or as many as a request of the device has
constexpr unsigned kInlineBytes = 256;

}  // namespace

Result<std::unique_ptr<Link>> Link::open(const Fabric& fabric, const Nic& nic) {
  const std::shared_ptr<verbs::Device>& device = fabric.devices()[nic.device];
  auto link = std::make_unique<Link>();
  std::array<std::byte, 4> drawn{};
  if (const Status random = crypto::random_bytes(drawn); !random) return tl::unexpected(random.error());
  std::memcpy(&link->sequence, drawn.data(), drawn.size());
  link->sequence &= 0xff'ffff;

  // One place in the send queue is the greeting's.
  const unsigned requests = std::clamp(device->limits().requests, 2U, kWindow + 1);
  auto queue = verbs::CompletionQueue::open(
      device, std::min(requests + kReceives + 1, std::max(device->limits().completions, 1U)));
  if (!queue) return tl::unexpected(queue.error());
  link->queue = std::move(*queue);
  auto pair = verbs::QueuePair::open(
      device, *link->queue, nic.port.number,
      {.requests = requests, .receives = kReceives, .pieces = kPieces, .inline_bytes = kInlineBytes});
  if (!pair) return tl::unexpected(pair.error());
  link->pair = std::move(*pair);
  link->window = std::min(requests, link->pair->limits().requests) - 1;
  link->chain = std::make_unique<verbs::Chain>(kChain, link->pair->limits());
  for (unsigned i = 0; i < kReceives; ++i) {
    if (const Status posted = link->pair->post_receive(kReceive | i); !posted) {
      return tl::unexpected(posted.error());
    }
  }
  return link;
}

}  // namespace p2p::rdma
