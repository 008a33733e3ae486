// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/verbs/testing/fake_provider.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "drivers/verbs/testing/fake_state.h"

namespace p2p::verbs::testing {
namespace {

FakeProvider::State* the_state = nullptr;

constexpr unsigned kAll = std::numeric_limits<unsigned>::max();

ibv_wc_status status_of(Failure failure) {
  switch (failure) {
    case Failure::kRemoteAccess: return IBV_WC_REM_ACCESS_ERR;
    case Failure::kRetryExceeded: return IBV_WC_RETRY_EXC_ERR;
    case Failure::kLocalFault: return IBV_WC_LOC_PROT_ERR;
  }
  return IBV_WC_GENERAL_ERR;
}

}  // namespace

FakeProvider::State& current_state() {
  if (the_state == nullptr) std::abort();
  return *the_state;
}

FakeProvider::FakeProvider(const Settings& settings) : state_(std::make_unique<State>(settings)) {
  if (the_state != nullptr) std::abort();
  the_state = state_.get();
}

FakeProvider::~FakeProvider() {
  if (!state_->pairs.empty() || !state_->regions.empty() || !state_->contexts.empty()) std::abort();
  the_state = nullptr;
}

const Library& FakeProvider::library() const { return state_->library; }

FakeProvider::Counts FakeProvider::counts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counts;
}

FakeProvider::Connected FakeProvider::connected() const {
  const std::lock_guard lock(state_->mutex);
  return state_->connected;
}

void FakeProvider::hold() {
  const std::lock_guard lock(state_->mutex);
  state_->holding = true;
}

void FakeProvider::step(unsigned requests) {
  const std::lock_guard lock(state_->mutex);
  state_->work_all(requests);
}

void FakeProvider::release() {
  const std::lock_guard lock(state_->mutex);
  state_->holding = false;
  state_->work_all(kAll);
}

void FakeProvider::fail_after(std::uint64_t after, Failure failure) {
  const std::lock_guard lock(state_->mutex);
  state_->failure = {after, failure};
}

void FakeProvider::set_port(unsigned device, bool up) {
  const std::lock_guard lock(state_->mutex);
  FakeDevice& fake = state_->devices.at(device);
  fake.up = up;
  ibv_async_event event{};
  event.event_type = up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR;
  event.element.port_num = 1;
  state_->say_all(fake, event);
}

void FakeProvider::break_device(unsigned device) {
  const std::lock_guard lock(state_->mutex);
  ibv_async_event event{};
  event.event_type = IBV_EVENT_DEVICE_FATAL;
  state_->say_all(state_->devices.at(device), event);
}

FakeProvider::State::State(const Settings& wanted) : settings(wanted), library(fake_library()) {
  for (unsigned i = 0; i < wanted.devices; ++i) devices.emplace_back().label = "fake" + std::to_string(i);
}

void FakeProvider::State::count(const FakePair& pair, const ibv_send_wr& request) {
  ++counts.requests;
  counts.pieces += static_cast<unsigned>(request.num_sge);
  if ((request.send_flags & IBV_SEND_SIGNALED) != 0) ++counts.completing;
  if ((request.send_flags & IBV_SEND_INLINE) != 0) ++counts.carried;
  counts.most_outstanding =
      std::max(counts.most_outstanding, static_cast<unsigned>(pair.requests.size()) + 1);
}

int FakeProvider::State::post(FakePair& pair, ibv_send_wr* first, ibv_send_wr** bad) {
  ++counts.doorbells;
  for (ibv_send_wr* wr = first; wr != nullptr; wr = wr->next) {
    count(pair, *wr);
    if (settings.counts_only) {
      if ((wr->send_flags & IBV_SEND_SIGNALED) != 0) {
        complete(pair.send_cq, {.wr_id = wr->wr_id, .status = IBV_WC_SUCCESS});
      }
      continue;
    }
    if (pair.state == IBV_QPS_INIT || pair.state == IBV_QPS_RTR || pair.requests.size() >= pair.depth) {
      counts.overrun = counts.overrun || pair.requests.size() >= pair.depth;
      *bad = wr;
      return pair.requests.size() >= pair.depth ? ENOMEM : EINVAL;
    }
    FakeRequest request{.raw = *wr, .pieces = {wr->sg_list, wr->sg_list + wr->num_sge}, .carried = {}};
    if ((wr->send_flags & IBV_SEND_INLINE) != 0) {
      for (const ibv_sge& piece : request.pieces) {
        const auto* data = reinterpret_cast<const std::byte*>(piece.addr);
        request.carried.insert(request.carried.end(), data, data + piece.length);
      }
      if (request.carried.size() > settings.inline_bytes) return EINVAL;
    }
    pair.requests.push_back(std::move(request));
  }
  if (pair.state == IBV_QPS_ERR) {
    stop(pair);
  } else if (!holding) {
    work(pair, kAll);
  }
  return 0;
}

void FakeProvider::State::work_all(unsigned most) {
  for (const auto& [number, pair] : std::map(pairs)) work(*pair, most);
}

void FakeProvider::State::work(FakePair& pair, unsigned most) {
  for (unsigned i = 0; i < most && !pair.requests.empty() && pair.state == IBV_QPS_RTS; ++i) {
    const FakeRequest request = std::move(pair.requests.front());
    pair.requests.pop_front();
    if (done(pair, request)) continue;
    pair.requests.push_front(request);
    return;
  }
}

// False: it has to wait, for a receive or until the peer's pair is connected, as a device would that sends
// again.
bool FakeProvider::State::done(FakePair& pair, const FakeRequest& request) {
  const auto found = pairs.find(pair.peer);
  FakePair* peer = found == pairs.end() ? nullptr : found->second;
  const bool word = request.raw.opcode == IBV_WR_SEND_WITH_IMM;
  if (peer != nullptr && peer->state == IBV_QPS_INIT) return false;
  if (word && peer != nullptr && peer->receives.empty() && peer->state != IBV_QPS_ERR) return false;
  const ibv_wc_status status = outcome(pair, peer, request);
  ibv_wc completion{.wr_id = request.raw.wr_id, .status = status};
  if (status == IBV_WC_SUCCESS) {
    if (word && peer != nullptr) {
      ibv_wc arrival{.wr_id = peer->receives.front(), .status = IBV_WC_SUCCESS, .opcode = IBV_WC_RECV};
      arrival.imm_data = request.raw.imm_data;
      arrival.wc_flags = IBV_WC_WITH_IMM;
      peer->receives.pop_front();
      complete(peer->recv_cq, arrival);
    }
    if ((request.raw.send_flags & IBV_SEND_SIGNALED) != 0) complete(pair.send_cq, completion);
    return true;
  }
  complete(pair.send_cq, completion);
  stop(pair);
  if (status == IBV_WC_REM_ACCESS_ERR && peer != nullptr) {
    stop(*peer);
    ibv_async_event event{};
    event.event_type = IBV_EVENT_QP_ACCESS_ERR;
    event.element.qp = peer;
    say(*static_cast<FakeContext*>(peer->context), event);
  }
  return true;
}

ibv_wc_status FakeProvider::State::outcome(FakePair& pair, FakePair* peer, const FakeRequest& request) {
  if (failure) {
    if (failure->first == 0) return status_of(std::exchange(failure, std::nullopt)->second);
    --failure->first;
  }
  const bool reached = peer != nullptr && peer->state >= IBV_QPS_RTR && peer->state <= IBV_QPS_RTS &&
                       peer->peer == pair.qp_num &&
                       static_cast<FakeContext*>(pair.context)->fake_device().up &&
                       static_cast<FakeContext*>(peer->context)->fake_device().up;
  if (!reached) return IBV_WC_RETRY_EXC_ERR;
  return move(*peer, request);
}

ibv_wc_status FakeProvider::State::move(FakePair& peer, const FakeRequest& request) {
  const bool write = request.raw.opcode == IBV_WR_RDMA_WRITE;
  std::uint64_t size = 0;
  for (const ibv_sge& piece : request.pieces) size += piece.length;
  if (size == 0) return IBV_WC_SUCCESS;
  const auto region = regions.find(request.raw.wr.rdma.rkey);
  std::byte* remote = at(request.raw.wr.rdma.rkey, request.raw.wr.rdma.remote_addr, size);
  if (remote == nullptr || region->second->pd != peer.pd) return IBV_WC_REM_ACCESS_ERR;
  if (write && (region->second->access & IBV_ACCESS_REMOTE_WRITE) == 0) return IBV_WC_REM_ACCESS_ERR;
  if (!request.carried.empty()) {
    std::memcpy(remote, request.carried.data(), size);
    return IBV_WC_SUCCESS;
  }
  for (const ibv_sge& piece : request.pieces) {
    std::byte* local = at(piece.lkey, piece.addr, piece.length);
    if (local == nullptr) return IBV_WC_LOC_PROT_ERR;
    std::memmove(write ? remote : local, write ? local : remote, piece.length);
    remote += piece.length;
  }
  return IBV_WC_SUCCESS;
}

std::byte* FakeProvider::State::at(std::uint32_t key, std::uint64_t address, std::uint64_t size) const {
  const auto found = regions.find(key);
  if (found == regions.end()) return nullptr;
  const std::uint64_t offset = address - reinterpret_cast<std::uint64_t>(found->second->addr);
  const bool inside = offset <= found->second->length && size <= found->second->length - offset;
  return inside ? static_cast<std::byte*>(found->second->addr) + offset : nullptr;
}

void FakeProvider::State::stop(FakePair& pair) {
  pair.state = IBV_QPS_ERR;
  for (const FakeRequest& request : std::exchange(pair.requests, {})) {
    complete(pair.send_cq, {.wr_id = request.raw.wr_id, .status = IBV_WC_WR_FLUSH_ERR});
  }
  for (const std::uint64_t id : std::exchange(pair.receives, {})) {
    complete(pair.recv_cq, {.wr_id = id, .status = IBV_WC_WR_FLUSH_ERR});
  }
}

void FakeProvider::State::say(FakeContext& context, const ibv_async_event& event) {
  context.events.push_back(event);
  ::eventfd_write(context.async_fd, 1);
}

void FakeProvider::State::say_all(const FakeDevice& device, const ibv_async_event& event) {
  for (FakeContext* context : contexts) {
    if (context->device == &device) say(*context, event);
  }
}

void FakeProvider::State::complete(ibv_cq* raw, const ibv_wc& completion) {
  auto& queue = *static_cast<FakeQueue*>(raw);
  queue.completions.push_back(completion);
  if (queue.completions.size() > static_cast<std::size_t>(queue.cqe)) counts.overrun = true;
  if (!std::exchange(queue.armed, false)) return;
  auto& channel = *static_cast<FakeChannel*>(queue.channel);
  channel.events.push_back(raw);
  ::eventfd_write(channel.fd, 1);
}

}  // namespace p2p::verbs::testing
