// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/memory/key.h"

#include <algorithm>

#include "base/error.h"
#include "base/peer_text.h"

namespace p2p::cuda_ipc {
namespace {

constexpr std::uint8_t kVersion = 6;

enum KeyKind : std::uint8_t { kRefusal, kAllocation, kChunks, kPrivate };

constexpr std::size_t kMaxRefusal = 400;

void put(ByteWriter& out, const ProcessId& process) {
  out.put(ByteView(process.boot));
  out.put(process.pid_namespace);
  out.put(process.pid);
  out.put(process.started);
}

void put(ByteWriter& out, const SharedMemory& memory) {
  put(out, memory.owner);
  out.put(ByteView(memory.device));
  out.put(ByteView(memory.handle));
  out.put(memory.base);
  out.put(memory.size);
  out.put(memory.buffer_id);
}

void put(ByteWriter& out, const Ticket& ticket) {
  out.put(ByteView(ticket.server));
  out.put(ticket.number);
  out.put(ByteView(ticket.secret));
}

void put(ByteWriter& out, const ChunkedMemory& memory) {
  put(out, memory.owner);
  out.put(ByteView(memory.device));
  put(out, memory.ticket);
  out.put(memory.base);
  out.put(memory.size);
  out.put(memory.count);
}

// Whether there is one comes first.
void put(ByteWriter& out, const std::optional<RingTicket>& ring) {
  out.put(static_cast<std::uint8_t>(ring ? 1 : 0));
  if (!ring) return;
  put(out, ring->owner);
  put(out, ring->ticket);
}

template <std::size_t kBytes>
std::array<std::byte, kBytes> get_array(ByteReader& in) {
  std::array<std::byte, kBytes> array{};
  const ByteView bytes = in.take(kBytes);
  std::copy(bytes.begin(), bytes.end(), array.begin());
  return array;
}

ProcessId get_process(ByteReader& in) {
  ProcessId process;
  process.boot = get_array<16>(in);
  process.pid_namespace = in.get<std::uint64_t>();
  process.pid = in.get<std::uint64_t>();
  process.started = in.get<std::uint64_t>();
  return process;
}

SharedMemory get_memory(ByteReader& in) {
  SharedMemory memory;
  memory.owner = get_process(in);
  memory.device = get_array<16>(in);
  memory.handle = get_array<64>(in);
  memory.base = in.get<std::uint64_t>();
  memory.size = in.get<std::uint64_t>();
  memory.buffer_id = in.get<std::uint64_t>();
  return memory;
}

Ticket get_ticket(ByteReader& in) {
  Ticket ticket;
  ticket.server = get_array<16>(in);
  ticket.number = in.get<std::uint64_t>();
  ticket.secret = get_array<16>(in);
  return ticket;
}

ChunkedMemory get_chunks(ByteReader& in) {
  ChunkedMemory memory;
  memory.owner = get_process(in);
  memory.device = get_array<16>(in);
  memory.ticket = get_ticket(in);
  memory.base = in.get<std::uint64_t>();
  memory.size = in.get<std::uint64_t>();
  memory.count = in.get<std::uint32_t>();
  return memory;
}

tl::unexpected<Error> unreadable_key(ByteView bytes) {
  return fail(ErrorCode::kProtocol, "a key of cuda_ipc that cannot be read ({} bytes)", bytes.size());
}

bool sound(const std::optional<SharedMemory>& memory) {
  return !memory || (memory->size != 0 && memory->base + memory->size > memory->base);
}

bool sound(const ChunkedMemory& memory) {
  return memory.count != 0 && memory.count <= kMaxChunks && memory.size >= memory.count &&
         memory.base + memory.size > memory.base;
}

// The neighbours after an allocation.
bool get_neighbours(ByteReader& in, std::vector<AllocationId>& neighbours) {
  const std::size_t count = in.get<std::uint8_t>();
  if (count > kMaxNeighbours) return false;
  for (std::size_t i = 0; i < count && in.ok(); ++i) {
    AllocationId& neighbour = neighbours.emplace_back();
    neighbour.base = in.get<std::uint64_t>();
    neighbour.buffer_id = in.get<std::uint64_t>();
    neighbour.handle = get_array<64>(in);
  }
  return true;
}

bool get_ring(ByteReader& in, std::optional<RingTicket>& ring) {
  const auto there = in.get<std::uint8_t>();
  if (there > 1) return false;
  if (there == 0) return in.ok();
  ring.emplace();
  ring->owner = get_process(in);
  ring->ticket = get_ticket(in);
  return in.ok();
}

KeyKind kind_of(const ExportedKey& key) {
  if (key.memory) return kAllocation;
  if (key.chunks) return kChunks;
  return key.is_private ? kPrivate : kRefusal;
}

}  // namespace

Bytes encode(const ExportedKey& key) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.put(kVersion);
  out.put(static_cast<std::uint8_t>(kind_of(key)));
  if (key.memory) {
    put(out, *key.memory);
    const std::size_t count = std::min(key.neighbours.size(), kMaxNeighbours);
    out.put(static_cast<std::uint8_t>(count));
    for (std::size_t i = 0; i < count; ++i) {
      out.put(key.neighbours[i].base);
      out.put(key.neighbours[i].buffer_id);
      out.put(ByteView(key.neighbours[i].handle));
    }
    put(out, key.ring);
  } else if (key.chunks) {
    put(out, *key.chunks);
  } else {
    if (key.is_private) put(out, key.ring);
    out.put(as_bytes(std::string_view(key.refusal).substr(0, kMaxRefusal)));
  }
  return bytes;
}

Bytes encode(const ChannelAddress& address) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.put(kVersion);
  put(out, address.process);
  out.put(static_cast<std::uint8_t>(address.probe ? 1 : 0));
  if (address.probe) put(out, *address.probe);
  if (!address.twin) return bytes;
  out.put(address.twin->place);
  out.put(ByteView(address.twin->listener));
  return bytes;
}

Result<ExportedKey> decode_key(ByteView bytes) {
  ByteReader in(bytes);
  const auto version = in.get<std::uint8_t>();
  const auto kind = in.get<std::uint8_t>();
  ExportedKey key;
  if (!in.ok() || version != kVersion) return unreadable_key(bytes);
  if (kind == kAllocation) {
    key.memory = get_memory(in);
    if (!get_neighbours(in, key.neighbours) || !get_ring(in, key.ring)) return unreadable_key(bytes);
  } else if (kind == kChunks) {
    key.chunks = get_chunks(in);
    if (!sound(*key.chunks)) return unreadable_key(bytes);
  } else if (kind == kRefusal || kind == kPrivate) {
    key.is_private = kind == kPrivate;
    if (key.is_private && !get_ring(in, key.ring)) return unreadable_key(bytes);
    if (in.left() > kMaxRefusal) return unreadable_key(bytes);
    key.refusal = PeerText(in.take(in.left())).text();
  }
  if (in.ok() && in.left() == 0 && sound(key.memory)) return key;
  return unreadable_key(bytes);
}

Result<ChannelAddress> decode_address(ByteView bytes) {
  ByteReader in(bytes);
  const auto version = in.get<std::uint8_t>();
  ChannelAddress address;
  address.process = get_process(in);
  const auto probed = in.get<std::uint8_t>();
  if (in.ok() && version == kVersion && probed <= 1) {
    if (probed == 1) address.probe = get_memory(in);
    if (in.left() != 0) {
      address.twin.emplace();
      address.twin->place = in.get<std::uint64_t>();
      address.twin->listener = get_array<sizeof(Token)>(in);
    }
    if (in.ok() && in.left() == 0 && sound(address.probe)) return address;
  }
  return fail(ErrorCode::kProtocol, "an address of cuda_ipc that cannot be read ({} bytes)", bytes.size());
}

}  // namespace p2p::cuda_ipc
