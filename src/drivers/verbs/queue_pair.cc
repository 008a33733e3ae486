// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/verbs/queue_pair.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "drivers/verbs/table.h"

namespace p2p::verbs {
namespace {

// 0.64 ms between tries where the peer has no receive posted, as often as it takes.
constexpr std::uint8_t kReceiverNotReadyTimer = 12;
constexpr std::uint8_t kReceiverNotReadyRetries = 7;
constexpr std::uint8_t kHopLimit = 64;

ibv_mtu code_of(unsigned mtu) {
  return static_cast<ibv_mtu>(
      std::clamp(static_cast<int>(std::bit_width(mtu)) - 8, int{IBV_MTU_256}, int{IBV_MTU_4096}));
}

template <class To>
To narrow(unsigned value) {
  return static_cast<To>(value);
}

}  // namespace

QueuePair::QueuePair(std::shared_ptr<Device> device, unsigned port)
    : device_(std::move(device)), port_(port), name_(fmt::format("{}:{}", device_->name(), port)) {}

Result<std::unique_ptr<QueuePair>> QueuePair::open(std::shared_ptr<Device> device, CompletionQueue& queue,
                                                   unsigned port, const QueuePairLimits& wanted) {
  const Library& library = device->library();
  const Limits& most = device->limits();
  std::unique_ptr<QueuePair> pair(new QueuePair(std::move(device), port));
  ibv_qp_init_attr attributes{};
  attributes.send_cq = queue.handle();
  attributes.recv_cq = queue.handle();
  attributes.qp_type = IBV_QPT_RC;
  // Nothing but its refusal tells how much a device carries inline, and how many pieces it takes beside.
  unsigned pieces = std::clamp(wanted.pieces, 1U, std::max(most.pieces, 1U));
  for (; pair->pair_ == nullptr && pieces != 0; pieces /= 2) {
    for (unsigned carried = wanted.inline_bytes;; carried /= 2) {
      attributes.cap = {.max_send_wr = std::min(wanted.requests, most.requests),
                        .max_recv_wr = std::min(wanted.receives, most.requests),
                        .max_send_sge = pieces,
                        .max_recv_sge = 1,
                        .max_inline_data = carried};
      pair->pair_ = library.create_qp(pair->device_->domain(), &attributes);
      if (pair->pair_ != nullptr || carried == 0) break;
    }
  }
  if (pair->pair_ == nullptr) {
    return tl::unexpected<Error>(system_error(fmt::format("make a queue pair on {}", pair->name_)));
  }
  pair->limits_ = {.requests = attributes.cap.max_send_wr,
                   .receives = attributes.cap.max_recv_wr,
                   .pieces = attributes.cap.max_send_sge,
                   .inline_bytes = attributes.cap.max_inline_data};
  ibv_qp_attr state{};
  state.qp_state = IBV_QPS_INIT;
  state.port_num = narrow<std::uint8_t>(port);
  state.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  constexpr int kMask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  if (const int error = library.modify_qp(pair->pair_, &state, kMask); error != 0) {
    return tl::unexpected<Error>(system_error(fmt::format("prepare a queue pair on {}", pair->name_), error));
  }
  return pair;
}

QueuePair::~QueuePair() {
  if (pair_ != nullptr) device_->library().destroy_qp(pair_);
}

std::uint32_t QueuePair::number() const { return pair_->qp_num; }

Status QueuePair::connect(const Path& path) {
  if (Status received = make_ready_to_receive(path); !received) return received;
  return make_ready_to_send(path);
}

Status QueuePair::make_ready_to_receive(const Path& path) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = code_of(path.mtu);
  attributes.dest_qp_num = path.peer_number;
  attributes.rq_psn = path.peer_sequence;
  attributes.max_dest_rd_atomic = narrow<std::uint8_t>(path.reads_in);
  attributes.min_rnr_timer = kReceiverNotReadyTimer;
  attributes.ah_attr.port_num = narrow<std::uint8_t>(port_);
  attributes.ah_attr.dlid = path.peer_lid;
  attributes.ah_attr.sl = narrow<std::uint8_t>(path.service_level);
  if (path.global) {
    attributes.ah_attr.is_global = 1;
    std::memcpy(attributes.ah_attr.grh.dgid.raw, path.peer_gid.data(), path.peer_gid.size());
    attributes.ah_attr.grh.sgid_index = narrow<std::uint8_t>(path.gid_index);
    attributes.ah_attr.grh.hop_limit = kHopLimit;
    attributes.ah_attr.grh.traffic_class = narrow<std::uint8_t>(path.traffic_class);
  }
  constexpr int kMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  const int error = device_->library().modify_qp(pair_, &attributes, kMask);
  if (error == 0) return {};
  return tl::unexpected<Error>(system_error(
      fmt::format("connect a queue pair on {} with number {} of the peer", name_, path.peer_number), error));
}

Status QueuePair::make_ready_to_send(const Path& path) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = path.sequence;
  attributes.max_rd_atomic = narrow<std::uint8_t>(path.reads_out);
  attributes.timeout = narrow<std::uint8_t>(path.timeout);
  attributes.retry_cnt = narrow<std::uint8_t>(path.retries);
  attributes.rnr_retry = kReceiverNotReadyRetries;
  constexpr int kMask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT |
                        IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
  const int error = device_->library().modify_qp(pair_, &attributes, kMask);
  if (error == 0) return {};
  return tl::unexpected<Error>(
      system_error(fmt::format("open the send queue of a pair on {}", name_), error));
}

Status QueuePair::stop() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  const int error = device_->library().modify_qp(pair_, &attributes, IBV_QP_STATE);
  if (error == 0) return {};
  return tl::unexpected<Error>(system_error(fmt::format("stop a queue pair on {}", name_), error));
}

Status QueuePair::post_word(std::uint64_t id, std::uint32_t word) {
  ibv_send_wr request{};
  request.wr_id = id;
  request.opcode = IBV_WR_SEND_WITH_IMM;
  request.send_flags = IBV_SEND_SIGNALED;
  request.imm_data = word;
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(pair_, &request, &bad);
  if (error == 0) return {};
  return tl::unexpected<Error>(system_error(fmt::format("post to a queue pair on {}", name_), error));
}

Status QueuePair::post_receive(std::uint64_t id) {
  ibv_recv_wr request{};
  request.wr_id = id;
  ibv_recv_wr* bad = nullptr;
  const int error = ibv_post_recv(pair_, &request, &bad);
  if (error == 0) return {};
  return tl::unexpected<Error>(system_error(fmt::format("post a receive to a pair on {}", name_), error));
}

}  // namespace p2p::verbs
