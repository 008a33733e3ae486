// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/verbs/chain.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "drivers/verbs/table.h"

namespace p2p::verbs {

struct Chain::Storage {
  std::vector<ibv_send_wr> requests;
  std::vector<ibv_sge> pieces;       // `stride` for each request
  std::vector<std::uint64_t> bytes;  // of each request
  std::size_t stride = 1;
};

Chain::Chain(unsigned requests, const QueuePairLimits& limits)
    : most_(requests), limits_(limits), storage_(std::make_unique<Storage>()) {
  Storage& storage = *storage_;
  storage.stride = std::max(limits.pieces, 1U);
  storage.requests.resize(requests);
  storage.bytes.resize(requests);
  storage.pieces.resize(requests * storage.stride);
  for (unsigned i = 0; i < requests; ++i) {
    storage.requests[i].next = i + 1 < requests ? &storage.requests[i + 1] : nullptr;
    storage.requests[i].sg_list = &storage.pieces[i * storage.stride];
  }
}

Chain::~Chain() = default;

bool Chain::add(Verb verb, const Extent& extent) {
  const ibv_wr_opcode opcode = verb == Verb::kWrite ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
  const auto local = reinterpret_cast<std::uint64_t>(extent.local);
  if (!std::exchange(sealed_, false) && size_ != 0) {
    ibv_send_wr& last = storage_->requests[size_ - 1];
    std::uint64_t& bytes = storage_->bytes[size_ - 1];
    if (last.opcode == opcode && last.num_sge != 0 && last.wr.rdma.rkey == extent.remote_key &&
        last.wr.rdma.remote_addr + bytes == extent.remote) {
      ibv_sge& end = last.sg_list[last.num_sge - 1];
      if (end.lkey == extent.local_key && end.addr + end.length == local) {
        end.length += extent.size;
        bytes += extent.size;
        return true;
      }
      if (static_cast<std::size_t>(last.num_sge) < storage_->stride) {
        last.sg_list[last.num_sge++] = {.addr = local, .length = extent.size, .lkey = extent.local_key};
        bytes += extent.size;
        return true;
      }
    }
  }
  if (size_ == most_) return false;
  ibv_send_wr& request = storage_->requests[size_];
  request.opcode = opcode;
  request.num_sge = 1;
  request.sg_list[0] = {.addr = local, .length = extent.size, .lkey = extent.local_key};
  request.wr.rdma.remote_addr = extent.remote;
  request.wr.rdma.rkey = extent.remote_key;
  storage_->bytes[size_++] = extent.size;
  return true;
}

bool Chain::add_probe() {
  if (size_ == most_) return false;
  ibv_send_wr& request = storage_->requests[size_];
  request.opcode = IBV_WR_RDMA_WRITE;
  request.num_sge = 0;
  request.wr.rdma.remote_addr = 0;
  request.wr.rdma.rkey = 0;
  storage_->bytes[size_++] = 0;
  return true;
}

Status Chain::post(QueuePair& pair, std::uint64_t first_id) {
  if (size_ == 0) return {};
  for (unsigned i = 0; i < size_; ++i) {
    ibv_send_wr& request = storage_->requests[i];
    const bool carried = request.opcode == IBV_WR_RDMA_WRITE && storage_->bytes[i] <= limits_.inline_bytes;
    request.wr_id = first_id + i;
    request.send_flags = carried ? IBV_SEND_INLINE : 0;
  }
  ibv_send_wr& last = storage_->requests[size_ - 1];
  last.send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* const next = std::exchange(last.next, nullptr);
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(pair.handle(), storage_->requests.data(), &bad);
  last.next = next;
  const unsigned count = std::exchange(size_, 0);
  if (error == 0) return {};
  return tl::unexpected<Error>(
      system_error(fmt::format("post {} requests to a queue pair on {}", count, pair.name()), error));
}

}  // namespace p2p::verbs
