// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "tcpx/channel.h"

#include <utility>

#include "base/error.h"
#include "drivers/cuda/memory.h"

namespace tcpx {

using p2p::Result;
using p2p::Status;

void Chunk::end() {
  --memory->uses;
  --progress->left;
}

void Chunk::fail(const p2p::Error& error) {
  if (!progress->error) progress->error = error;
  end();
}

namespace {

/// The comm's handle on the memory that the chunk is a part of.
Result<const net::MemoryHandle*> handle_of(net::RegistrationCache& registrations, const Chunk& chunk) {
  const Memory& memory = *chunk.memory;
  return registrations.find(chunk.mem_id, memory.data, memory.size, memory.type);
}

}  // namespace

Result<bool> SendChannel::progress() {
  bool moved = false;
  while (!waiting_.empty() && !window_.full()) {
    const Chunk& chunk = waiting_.front();
    const auto handle = handle_of(registrations_, chunk);
    if (!handle) return tl::unexpected(handle.error());
    const auto taken = window_.post(chunk.data, chunk.size, **handle);
    if (!taken) return tl::unexpected(taken.error());
    if (!*taken) break;
    posted_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    moved = true;
  }
  while (!posted_.empty()) {
    const auto done = window_.poll();
    if (!done) return tl::unexpected(done.error());
    if (!*done) break;
    posted_.front().end();
    posted_.pop_front();
    moved = true;
  }
  return moved;
}

void SendChannel::fail(const p2p::Error& error) {
  for (auto* chunks : {&posted_, &waiting_}) {
    for (Chunk& chunk : *chunks) chunk.fail(error);
    chunks->clear();
  }
}

ReceiveChannel::ReceiveChannel(net::RecvComm comm, unsigned window,
                               std::shared_ptr<p2p::device::Unpacker> unpacker)
    : unpacker_(std::move(unpacker)), registrations_(comm.comm), window_(std::move(comm), window) {}

ReceiveChannel::~ReceiveChannel() { withdraw(); }

/// Nothing copies out of the pool any more.
void ReceiveChannel::withdraw() {
  for (const Landing& landing : landings_) {
    if (landing.receive) unpacker_->withdraw(*landing.receive);
  }
}

Result<bool> ReceiveChannel::receive() {
  bool moved = false;
  for (const auto step : {&ReceiveChannel::post_next, &ReceiveChannel::take_arrival}) {
    while (true) {
      const auto stepped = (this->*step)();
      if (!stepped) return tl::unexpected(stepped.error());
      if (!*stepped) break;
      moved = true;
    }
  }
  return moved;
}

Result<bool> ReceiveChannel::post_next() {
  if (waiting_.empty() || window_.full()) return false;
  const Chunk& chunk = waiting_.front();
  const auto handle = handle_of(registrations_, chunk);
  if (!handle) return tl::unexpected(handle.error());
  const auto taken = window_.post(chunk.data, chunk.size, **handle);
  if (!taken) return tl::unexpected(taken.error());
  if (!*taken) return false;
  posted_.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
  return true;
}

Result<bool> ReceiveChannel::take_arrival() {
  const auto arrival = window_.poll();
  if (!arrival) return tl::unexpected(arrival.error());
  if (!*arrival) return false;
  const Chunk& chunk = posted_.front();
  const bool pooled = (*arrival)->unpack && chunk.memory->type == net::abi::kPointerCuda && chunk.size != 0;
  if (pooled && !plan_.lie_as((*arrival)->entries, chunk.size)) {
    return p2p::fail(p2p::ErrorCode::kMessageTooLong,
                     "receive {} on {}: its fragments do not add up to the {} bytes that were posted",
                     (*arrival)->sequence, window_.comm().comm->device(), chunk.size);
  }
  if (pooled) plan_.belong(chunk.data, chunk.size);
  Landing landing{std::move(posted_.front()), nullptr};
  posted_.pop_front();
  Status copied;
  if (pooled) copied = copy(landing, plan_.copies_from(window_.comm().unpack->pool));
  landings_.push_back(std::move(landing));
  if (!copied) return tl::unexpected(copied.error());
  return true;
}

Status ReceiveChannel::copy(Landing& landing, std::vector<p2p::kernels::CopyBlock>& copies) {
  if (unpacker_) {
    landing.receive = spare_receives_.take(copies);
    unpacker_->add(landing.receive);
    return {};
  }
  std::vector<std::byte> bytes;
  for (const p2p::kernels::CopyBlock& block : copies) {
    bytes.resize(block.bytes);
    if (auto read = p2p::cuda::copy_now(bytes.data(), block.source, block.bytes); !read) return read;
    if (auto written = p2p::cuda::copy_now(block.target, bytes.data(), block.bytes); !written) return written;
  }
  return {};
}

Result<bool> ReceiveChannel::finish() {
  bool moved = false;
  while (!landings_.empty()) {
    Landing& landing = landings_.front();
    const auto ended = spare_receives_.reclaim(landing.receive);
    if (!ended) return ended;
    if (!*ended) break;
    if (auto consumed = window_.consume(); !consumed) return tl::unexpected(consumed.error());
    landing.chunk.end();
    landings_.pop_front();
    moved = true;
  }
  return moved;
}

void ReceiveChannel::fail(const p2p::Error& error) {
  withdraw();
  for (Landing& landing : landings_) landing.chunk.fail(error);
  landings_.clear();
  for (auto* chunks : {&posted_, &waiting_}) {
    for (Chunk& chunk : *chunks) chunk.fail(error);
    chunks->clear();
  }
}

}  // namespace tcpx
