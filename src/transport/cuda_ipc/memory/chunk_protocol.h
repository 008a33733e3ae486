// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "base/bytes.h"
#include "drivers/crypto/mutual_proof.h"
#include "transport/cuda_ipc/memory/key.h"

/// What is said at the socket of a ChunkServer, packet by packet:
///   owner:    a challenge
///   importer: ticket, a challenge, proof that it knows the secret
///   owner:    `kServed` and proof that it knows the secret, or `kRefused` and why
///   importer: `kNext`, once for each batch that it has room for
///   owner:    `kServed` and the sizes of a batch, with a descriptor each; or `kRefused` and why
namespace p2p::cuda_ipc {

enum Answer : std::uint8_t { kServed, kRefused };
inline constexpr std::uint8_t kNext = 1;

/// Chunks of a batch: few, so that the importer maps the first ones while the owner exports the next, and
/// because a process stalls for milliseconds whenever its table of descriptors grows.
inline constexpr std::size_t kChunksOfABatch = 4;

/// A packet's bytes at most.
inline constexpr std::size_t kMaxPacket = 512;

/// For one packet.
inline constexpr std::chrono::seconds kPacketTime{5};

/// That both know the ticket's secret, good for this one conversation. The importer is the connector.
crypto::MutualProof proof_of(const Ticket& ticket, const Token& owners_challenge,
                             const Token& importers_challenge);

/// A socket's name.
std::string name_of(const Token& server);

}  // namespace p2p::cuda_ipc
