// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "tcpx/channel.h"

#include <limits>
#include <utility>

#include "base/error.h"
#include "drivers/cuda/memory.h"

namespace tcpx {

using p2p::Result;
using p2p::Status;

namespace {
// Copies of one launch: several chunks' pages.
constexpr std::size_t kListBlocks = 8192;
}  // namespace

void Chunk::end() {
  --memory->uses;
  --progress->left;
}

void Chunk::fail(const p2p::Error& error) {
  if (!progress->error) progress->error = error;
  end();
}

Result<const net::MemoryHandle*> Registrations::find(const std::shared_ptr<net::Comm>& comm,
                                                     const Chunk& chunk) {
  if (const auto found = handles_.find(chunk.mem_id); found != handles_.end()) return &found->second;
  const Memory& memory = *chunk.memory;
  net::PageRange range{memory.data, memory.size};
  if (memory.type == net::abi::kPointerCuda) range = net::page_range(memory.data, memory.size);
  auto handle = net::register_with(comm, range.data, range.size, memory.type);
  if (!handle) return tl::unexpected(handle.error());
  return &handles_.emplace(chunk.mem_id, std::move(*handle)).first->second;
}

Result<bool> SendChannel::progress() {
  bool moved = false;
  while (!waiting_.empty() && !window_.full()) {
    const Chunk& chunk = waiting_.front();
    const auto handle = registrations_.find(window_.comm(), chunk);
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

Result<ReceiveChannel> ReceiveChannel::open(net::RecvComm comm, unsigned window, const UnpackSetup& setup) {
  std::unique_ptr<p2p::device::Copier> copier;
  const bool kernel = setup.how == TcpxOptions::Unpack::kKernel;
  if (setup.cuda_device >= 0 && comm.unpack && setup.how != TcpxOptions::Unpack::kHost) {
    auto opened = p2p::device::Copier::open(
        setup.cuda_device, {.bulk_bytes = kernel ? std::numeric_limits<std::uint64_t>::max() : 0,
                            .blocks = kListBlocks,
                            .lists = net::kMaxRequests});
    if (!opened) return tl::unexpected(opened.error());
    copier = std::move(*opened);
  }
  return ReceiveChannel(std::move(comm), window, setup, std::move(copier));
}

ReceiveChannel::ReceiveChannel(net::RecvComm comm, unsigned window, UnpackSetup setup,
                               std::unique_ptr<p2p::device::Copier> copier)
    : setup_(setup), window_(std::move(comm), window), copier_(std::move(copier)) {}

Result<bool> ReceiveChannel::progress() {
  bool moved = false;
  for (const auto step :
       {&ReceiveChannel::post_next, &ReceiveChannel::take_arrivals, &ReceiveChannel::finish_landing}) {
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
  const auto handle = registrations_.find(window_.comm().comm, chunk);
  if (!handle) return tl::unexpected(handle.error());
  const auto taken = window_.post(chunk.data, chunk.size, **handle);
  if (!taken) return tl::unexpected(taken.error());
  if (!*taken) return false;
  posted_.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
  return true;
}

/// Everything that has come, in one landing where a device does the copies.
Result<bool> ReceiveChannel::take_arrivals() {
  Landing landing;
  copies_.clear();
  while (copies_.size() + net::abi::kUnpackEntries <= kListBlocks) {
    const auto arrival = window_.poll();
    if (!arrival) return tl::unexpected(arrival.error());
    if (!*arrival) break;
    const Chunk& chunk = posted_.front();
    if ((*arrival)->unpack && chunk.memory->type == net::abi::kPointerCuda && chunk.size != 0) {
      if (auto planned = plan(**arrival, chunk); !planned) return tl::unexpected(planned.error());
    }
    landing.chunks.push_back(std::move(posted_.front()));
    posted_.pop_front();
    if (!copier_) break;
  }
  if (landing.chunks.empty()) return false;
  if (auto copied = copy(landing); !copied) return tl::unexpected(copied.error());
  landings_.push_back(std::move(landing));
  return true;
}

/// Appends to `copies_`.
Status ReceiveChannel::plan(const net::Arrival& arrival, const Chunk& chunk) {
  fragments_.clear();
  for (const net::abi::UnpackEntry& entry : arrival.entries) {
    fragments_.push_back({entry.source, entry.size, entry.destination});
  }
  if (!p2p::kernels::fills(fragments_, chunk.size)) {
    return p2p::fail(p2p::ErrorCode::kMessageTooLong,
                     "receive {} on {}: its fragments do not add up to the {} bytes that were posted",
                     arrival.sequence, window_.comm().comm->device(), chunk.size);
  }
  const p2p::kernels::Block block{0, chunk.size, chunk.data};
  p2p::kernels::plan_unpack(window_.comm().unpack->pool, fragments_, {&block, 1}, copies_);
  return {};
}

Status ReceiveChannel::copy(Landing& landing) {
  if (copies_.empty()) return {};
  if (copier_) {
    landing.list = copier_->take();  // there are as many as requests
    for (const p2p::kernels::CopyBlock& block : copies_) copier_->add(*landing.list, block, true);
    copier_->start(*landing.list);
    return {};
  }
  if (setup_.cuda_device < 0) {
    p2p::kernels::copy_on_host(copies_);
    return {};
  }
  std::vector<std::byte> bytes;
  for (const p2p::kernels::CopyBlock& block : copies_) {
    bytes.resize(block.bytes);
    if (auto read = p2p::cuda::copy_now(bytes.data(), block.source, block.bytes); !read) return read;
    if (auto written = p2p::cuda::copy_now(block.target, bytes.data(), block.bytes); !written) return written;
  }
  return {};
}

Result<bool> ReceiveChannel::finish_landing() {
  if (landings_.empty()) return false;
  Landing& landing = landings_.front();
  if (landing.list != nullptr) {
    if (!copier_->finished(*landing.list)) return false;
    const Status landed = landing.list->status();
    copier_->give_back(*std::exchange(landing.list, nullptr));
    if (!landed) return tl::unexpected(landed.error());
  }
  while (!landing.chunks.empty()) {
    if (auto consumed = window_.consume(); !consumed) return tl::unexpected(consumed.error());
    landing.chunks.front().end();
    landing.chunks.erase(landing.chunks.begin());
  }
  landings_.pop_front();
  return true;
}

void ReceiveChannel::fail(const p2p::Error& error) {
  copier_.reset();  // waits for its copies
  for (Landing& landing : landings_) {
    for (Chunk& chunk : landing.chunks) chunk.fail(error);
  }
  landings_.clear();
  for (auto* chunks : {&posted_, &waiting_}) {
    for (Chunk& chunk : *chunks) chunk.fail(error);
    chunks->clear();
  }
}

}  // namespace tcpx
