// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/verbs/completion_queue.h"

#include <fcntl.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "drivers/verbs/table.h"

namespace p2p::verbs {
namespace {

constexpr std::size_t kMostPolled = 32;

Outcome outcome_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS: return Outcome::kDone;
    case IBV_WC_WR_FLUSH_ERR: return Outcome::kFlushed;
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR: return Outcome::kRemoteAccess;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR: return Outcome::kRetryExceeded;
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR: return Outcome::kLocalFault;
    default: return Outcome::kFailed;
  }
}

}  // namespace

Result<std::unique_ptr<CompletionQueue>> CompletionQueue::open(std::shared_ptr<Device> device,
                                                               unsigned depth) {
  const Library& library = device->library();
  ibv_context* context = device->context();
  std::unique_ptr<CompletionQueue> queue(new CompletionQueue(std::move(device)));
  const auto refused = [&] {
    return tl::unexpected<Error>(system_error(
        fmt::format("make a completion queue of {} entries on {}", depth, queue->device_->name())));
  };
  queue->channel_ = library.create_comp_channel(context);
  if (queue->channel_ == nullptr) return refused();
  ::fcntl(queue->fd(), F_SETFL, ::fcntl(queue->fd(), F_GETFL) | O_NONBLOCK);
  queue->queue_ = library.create_cq(context, static_cast<int>(depth), nullptr, queue->channel_, 0);
  if (queue->queue_ == nullptr) return refused();
  return queue;
}

CompletionQueue::~CompletionQueue() {
  if (queue_ != nullptr) device_->library().destroy_cq(queue_);
  if (channel_ != nullptr) device_->library().destroy_comp_channel(channel_);
}

Result<std::size_t> CompletionQueue::poll(std::span<WorkCompletion> completions) {
  std::array<ibv_wc, kMostPolled> raw;
  const auto most = static_cast<int>(std::min(completions.size(), raw.size()));
  const int count = ibv_poll_cq(queue_, most, raw.data());
  if (count < 0) return fail(ErrorCode::kSystem, "poll the completion queue of {}", device_->name());
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const ibv_wc& from = raw[i];
    // Of a failure only id and status are valid; receives have ids with the top bit set.
    WorkCompletion& to = completions[i];
    to = {.id = from.wr_id, .outcome = outcome_of(from.status)};
    to.received = from.status == IBV_WC_SUCCESS && (from.opcode & IBV_WC_RECV) != 0;
    if (to.received && (from.wc_flags & IBV_WC_WITH_IMM) != 0) to.immediate = from.imm_data;
    if (to.outcome != Outcome::kDone) to.text = device_->library().wc_status_str(from.status);
  }
  return static_cast<std::size_t>(count);
}

Status CompletionQueue::arm() {
  const int error = ibv_req_notify_cq(queue_, 0);
  if (error == 0) return {};
  return tl::unexpected<Error>(
      system_error(fmt::format("arm the completion queue of {}", device_->name()), error));
}

int CompletionQueue::fd() const { return channel_->fd; }

bool CompletionQueue::take_event() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  unsigned events = 0;
  while (device_->library().get_cq_event(channel_, &queue, &context) == 0) ++events;
  if (events != 0) device_->library().ack_cq_events(queue_, events);
  return events != 0;
}

}  // namespace p2p::verbs
