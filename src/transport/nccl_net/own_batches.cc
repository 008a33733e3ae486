// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/own_batches.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace p2p::nccl_net {
namespace {
constexpr std::size_t kMaxOwnBatches = 64;
}  // namespace

bool OwnBatches::post(const Batch& batch, Outgoing& outgoing) {
  const bool enough = bytes_under_way_ != 0 && bytes_under_way_ + batch.bytes > most_bytes_;
  if (enough || writes_.size() + reads_.size() >= kMaxOwnBatches) return false;
  if (batch.bytes == 0) {
    completions_.push_back({batch.id, {}});
    return true;
  }
  std::vector<LocalRange> pieces;
  std::vector<RegionRange> ranges;
  batch.for_each_piece([&](const Segment& piece) {
    pieces.push_back({piece.local, piece.size, piece.registration});
    ranges.push_back({piece.key->info().id, piece.key->info().key, piece.remote, piece.size});
  });
  const std::uint64_t number = ++last_number_;
  bytes_under_way_ += batch.bytes;
  if (batch.operation == Operation::kRead) {
    Read& read = reads_[number];
    read.id = batch.id;
    read.pieces = std::move(pieces);
    read.bytes = batch.bytes;
    // Goes with those of other reads that are posted now.
    messages_.send(ReadRequest{number, std::move(ranges)});
    return true;
  }
  auto out = std::make_shared<OutgoingBatch>();
  out->id = number;
  out->pieces = std::move(pieces);
  out->targets = std::move(ranges);
  out->left = batch.bytes;
  writes_[number] = {.id = batch.id, .bytes = batch.bytes, .out = out, .done = std::nullopt};
  outgoing.add(std::move(out));
  return true;
}

void OwnBatches::abandon(BatchId id, Outgoing& outgoing) {
  for (auto& [number, write] : writes_) {
    if (write.id != id || write.out->closed) continue;
    outgoing.close(*write.out);
    write.cancel_due = true;
  }
  for (auto& [number, read] : reads_) {
    if (read.id != id || read.abandoned) continue;
    read.abandoned = true;
    messages_.send(Cancel{number, true});
  }
}

Status OwnBatches::announced(const Chunk& chunk) {
  const auto found = reads_.find(chunk.batch);
  const std::uint64_t left = found == reads_.end() ? 0 : found->second.bytes - found->second.announced;
  if (found == reads_.end() || found->second.ended || chunk.size > left ||
      chunk.last != (chunk.size == left)) {
    return p2p::fail(ErrorCode::kProtocol, "{} bytes for a read that wants {}", chunk.size, left);
  }
  found->second.announced += chunk.size;
  ++found->second.outstanding;
  return {};
}

Result<Places> OwnBatches::resolve(const Chunk& chunk) {
  Read& read = reads_.at(chunk.batch);
  if (read.abandoned) return p2p::fail(ErrorCode::kCancelled, "the transfer was cancelled");
  return slice(read, chunk.size);
}

/// The next `bytes` of a read's local pieces.
Places OwnBatches::slice(Read& read, std::uint64_t bytes) {
  Places places;
  while (bytes != 0) {
    const LocalRange& piece = read.pieces[read.next];
    const std::uint64_t size = std::min(bytes, piece.size - read.offset);
    places.pieces.push_back({piece.data + read.offset, size, piece.registration});
    bytes -= size;
    read.offset += size;
    if (read.offset != piece.size) continue;
    ++read.next;
    read.offset = 0;
  }
  return places;
}

void OwnBatches::landed(const Chunk& chunk, const Status& status) {
  Read& read = reads_.at(chunk.batch);
  --read.outstanding;
  if (!status && !read.failed) read.failed = status.error();
}

Status OwnBatches::take(const Done& done) {
  if (done.response) {
    const auto found = reads_.find(done.batch);
    if (found == reads_.end()) return {};  // all of it had come when it was cancelled
    if (done.status || found->second.ended) {
      return p2p::fail(ErrorCode::kProtocol, "a read that ends without its bytes or an error");
    }
    found->second.ended = done.status.error();
    return {};
  }
  const auto found = writes_.find(done.batch);
  if (found == writes_.end() || found->second.done || !found->second.out->closed) {
    return p2p::fail(ErrorCode::kProtocol, "the end of a write that is not under way");
  }
  found->second.done = done.status;
  return {};
}

void OwnBatches::end_writes() {
  for (auto& [number, write] : writes_) {
    const OutgoingBatch& out = *write.out;
    if (out.failed && !write.done) write.cancel_due = true;
    if (!write.cancel_due || std::exchange(write.cancelled, true)) continue;
    if (out.posted_any) {
      messages_.send(Cancel{number, false});
    } else {
      write.done =
          tl::unexpected(out.failed.value_or(Error{ErrorCode::kCancelled, "the transfer was cancelled"}));
    }
  }
  std::erase_if(writes_, [&](const auto& entry) {
    const Write& write = entry.second;
    if (!write.done || !write.out->quiet()) return false;
    // What made it end early says more than the peer's word that it was cancelled.
    const auto& failed = write.out->failed;
    completions_.push_back({write.id, failed ? Status(tl::unexpected(*failed)) : *write.done});
    bytes_under_way_ -= write.bytes;
    return true;
  });
}

void OwnBatches::end_reads() {
  std::erase_if(reads_, [&](const auto& entry) {
    const Read& read = entry.second;
    if (read.outstanding != 0 || (!read.ended && read.announced != read.bytes)) return false;
    Status status;
    if (read.ended) status = tl::unexpected(*read.ended);
    if (read.failed) status = tl::unexpected(*read.failed);
    if (read.abandoned && status) status = p2p::fail(ErrorCode::kCancelled, "the transfer was cancelled");
    completions_.push_back({read.id, std::move(status)});
    bytes_under_way_ -= read.bytes;
    return true;
  });
}

bool OwnBatches::end() {
  const std::size_t before = completions_.size();
  end_writes();
  end_reads();
  return completions_.size() != before;
}

void OwnBatches::fail(const Error& why) {
  for (const auto& [number, write] : writes_) completions_.push_back({write.id, tl::unexpected(why)});
  for (const auto& [number, read] : reads_) completions_.push_back({read.id, tl::unexpected(why)});
  writes_.clear();
  reads_.clear();
  bytes_under_way_ = 0;
}

bool OwnBatches::take(std::vector<Completion>& completions) {
  if (completions_.empty()) return false;
  std::ranges::move(completions_, std::back_inserter(completions));
  completions_.clear();
  return true;
}

}  // namespace p2p::nccl_net
