// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "p2p/connection.h"
#include "p2p/result.h"

namespace p2p::python {

/// How a GPU is named in results and metadata: its index (10 or 22 bytes of metadata), or its PCI address.
enum class GpuNaming { kIndex, kBdf };

/// The form for this process; set once at import, before any endpoint.
GpuNaming gpu_naming();
void set_gpu_naming(GpuNaming naming);

/// Which of the acceptor's queues a connection is meant for.
enum class Purpose : std::uint8_t { kConnect = 0, kLocal = 1, kRemoteEndpoint = 2 };

/// What an endpoint says of itself: in its metadata, and in the handshake of each connection.
struct Identity {
  std::string address;  ///< numeric, or a name where one is announced
  std::uint16_t port = 0;
  std::int32_t gpu = 0;
  Purpose purpose = Purpose::kConnect;
  std::uint64_t number = 0;  ///< in notes: of the connection, as its maker counts those that it makes
};

/// Seed form: address (4 or 16 bytes, network order), port (u16 big endian), GPU index (i32, host order).
/// With kBdf: address, port, one byte of length, the PCI address as text. For a name, or an address with a
/// scope: four bytes 0xff, port and GPU index as in seed form, the name.
std::string encode_metadata(const Identity& identity, GpuNaming naming);

/// Takes all forms. kInvalidArgument for any other.
Result<Identity> decode_metadata(std::span<const std::byte> bytes);

/// Not of the form with a PCI address.
bool names_gpu_by_index(std::span<const std::byte> metadata);

/// The handshake's note: a mark, the purpose, the connection's number, the metadata in seed form.
std::string encode_note(const Identity& identity);

/// Falls back to what the socket tells where the peer is another program with a note of its own.
Identity decode_note(const Peer& peer);

/// The PCI address of a GPU, or its index as text where the driver lists none.
std::string gpu_bdf(std::int32_t index);

/// The index of a PCI address or of decimal text; kNotFound for what this machine does not have.
Result<std::int32_t> gpu_index(std::string_view text);

}  // namespace p2p::python
