// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "drivers/verbs/testing/fake_state.h"

// The fake's stand-ins for the library's functions, one each.
namespace p2p::verbs::testing {
namespace {

using State = FakeProvider::State;

int poll_cq(ibv_cq* raw, int most, ibv_wc* out) {
  const std::lock_guard lock(current_state().mutex);
  auto& queue = *static_cast<FakeQueue*>(raw);
  int count = 0;
  for (; count < most && !queue.completions.empty(); ++count) {
    out[count] = queue.completions.front();
    queue.completions.pop_front();
  }
  return count;
}

int req_notify_cq(ibv_cq* queue, int /*solicited_only*/) {
  const std::lock_guard lock(current_state().mutex);
  static_cast<FakeQueue*>(queue)->armed = true;
  return 0;
}

int post_send(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** bad) {
  const std::lock_guard lock(current_state().mutex);
  return current_state().post(*static_cast<FakePair*>(pair), first, bad);
}

int post_recv(ibv_qp* raw, ibv_recv_wr* first, ibv_recv_wr** /*bad*/) {
  State& state = current_state();
  const std::lock_guard lock(state.mutex);
  auto& pair = *static_cast<FakePair*>(raw);
  for (ibv_recv_wr* wr = first; wr != nullptr; wr = wr->next) pair.receives.push_back(wr->wr_id);
  const auto sender = state.pairs.find(pair.peer);
  if (sender != state.pairs.end() && !state.holding) state.work(*sender->second, ~0U);
  return 0;
}

ibv_device** get_device_list(int* count) {
  State& state = current_state();
  auto** list = new ibv_device*[state.devices.size() + 1]();
  for (std::size_t i = 0; i < state.devices.size(); ++i) list[i] = &state.devices[i];
  *count = static_cast<int>(state.devices.size());
  return list;
}

void free_device_list(ibv_device** list) { delete[] list; }

const char* get_device_name(ibv_device* device) { return static_cast<FakeDevice*>(device)->label.c_str(); }

ibv_context* open_device(ibv_device* device) {
  auto* context = new FakeContext();
  context->device = device;
  context->ops.poll_cq = poll_cq;
  context->ops.req_notify_cq = req_notify_cq;
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  context->events_fd = UniqueFd::of(::eventfd, 0, EFD_NONBLOCK | EFD_CLOEXEC);
  context->async_fd = context->events_fd.get();
  const std::lock_guard lock(current_state().mutex);
  current_state().contexts.push_back(context);
  return context;
}

int close_device(ibv_context* raw) {
  auto* context = static_cast<FakeContext*>(raw);
  {
    const std::lock_guard lock(current_state().mutex);
    std::erase(current_state().contexts, context);
  }
  delete context;
  return 0;
}

int query_device(ibv_context* /*context*/, ibv_device_attr* out) {
  const FakeProvider::Settings& settings = current_state().settings;
  *out = {};
  out->phys_port_cnt = 1;
  out->max_qp_wr = static_cast<int>(settings.requests);
  out->max_sge = static_cast<int>(settings.pieces);
  out->max_cqe = 1 << 20;
  out->max_qp_init_rd_atom = out->max_qp_rd_atom = static_cast<int>(settings.reads);
  return 0;
}

int query_port(ibv_context* context, std::uint8_t number, _compat_ibv_port_attr* raw) {
  if (number != 1) return EINVAL;
  auto& out = *reinterpret_cast<ibv_port_attr*>(raw);
  out.state = static_cast<FakeContext*>(context)->fake_device().up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  out.active_mtu = IBV_MTU_4096;
  out.active_speed = 32;
  out.active_width = 2;
  out.link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

// A link-local address, and an IPv4 one of a subnet of the device's own, each as RoCE v1 and v2.
ssize_t query_gid_table(ibv_context* context, ibv_gid_entry* out, std::size_t most, std::uint32_t /*flags*/,
                        std::size_t /*entry_size*/) {
  const std::string& label = static_cast<FakeContext*>(context)->fake_device().label;
  const auto number = static_cast<std::uint8_t>(label.back() - '0');
  constexpr std::size_t kCount = 4;
  for (std::size_t i = 0; i < std::min(most, kCount); ++i) {
    out[i] = {.gid_index = static_cast<std::uint32_t>(i), .port_num = 1};
    out[i].gid_type = i % 2 == 0 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
    std::uint8_t* raw = out[i].gid.raw;
    if (i < 2) {
      raw[0] = 0xfe;
      raw[1] = 0x80;
      raw[15] = static_cast<std::uint8_t>(number + 1);
    } else {
      raw[10] = raw[11] = 0xff;
      raw[12] = 10;
      raw[14] = number;
      raw[15] = 1;
    }
  }
  return kCount;
}

ibv_pd* alloc_pd(ibv_context* context) { return new ibv_pd{.context = context, .handle = 0}; }

int dealloc_pd(ibv_pd* domain) {
  delete domain;
  return 0;
}

ibv_mr* reg_mr(ibv_pd* domain, void* data, std::size_t size, int access) {
  State& state = current_state();
  const std::lock_guard lock(state.mutex);
  if (size > state.settings.most_registered) {
    errno = EFAULT;
    return nullptr;
  }
  auto* region = new FakeRegion();
  region->context = domain->context;
  region->pd = domain;
  region->addr = data;
  region->length = size;
  region->access = access;
  region->lkey = region->rkey = state.next_number++;
  state.regions.emplace(region->rkey, region);
  return region;
}

int dereg_mr(ibv_mr* raw) {
  const std::lock_guard lock(current_state().mutex);
  auto* region = static_cast<FakeRegion*>(raw);
  current_state().regions.erase(region->rkey);
  delete region;
  return 0;
}

ibv_comp_channel* create_comp_channel(ibv_context* context) {
  auto* channel = new FakeChannel();
  channel->context = context;
  channel->events_fd = UniqueFd::of(::eventfd, 0, EFD_NONBLOCK | EFD_CLOEXEC);
  channel->fd = channel->events_fd.get();
  return channel;
}

int destroy_comp_channel(ibv_comp_channel* channel) {
  delete static_cast<FakeChannel*>(channel);
  return 0;
}

ibv_cq* create_cq(ibv_context* context, int depth, void* /*data*/, ibv_comp_channel* channel,
                  int /*vector*/) {
  auto* queue = new FakeQueue();
  queue->context = context;
  queue->channel = channel;
  queue->cqe = depth;
  return queue;
}

int destroy_cq(ibv_cq* queue) {
  delete static_cast<FakeQueue*>(queue);
  return 0;
}

int get_cq_event(ibv_comp_channel* raw, ibv_cq** queue, void** /*data*/) {
  const std::lock_guard lock(current_state().mutex);
  auto& channel = *static_cast<FakeChannel*>(raw);
  if (channel.events.empty()) {
    eventfd_t ignored = 0;
    ::eventfd_read(channel.fd, &ignored);
    errno = EAGAIN;
    return -1;
  }
  *queue = channel.events.front();
  channel.events.pop_front();
  return 0;
}

void ack_cq_events(ibv_cq* /*queue*/, unsigned /*count*/) {}

ibv_qp* create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
  State& state = current_state();
  const std::lock_guard lock(state.mutex);
  if (attributes->cap.max_inline_data > state.settings.inline_bytes ||
      attributes->cap.max_send_sge > state.settings.pieces_granted) {
    errno = EINVAL;
    return nullptr;
  }
  auto* pair = new FakePair();
  pair->context = domain->context;
  pair->pd = domain;
  pair->send_cq = attributes->send_cq;
  pair->recv_cq = attributes->recv_cq;
  pair->depth = attributes->cap.max_send_wr;
  pair->qp_num = state.next_number++;
  state.pairs.emplace(pair->qp_num, pair);
  ++state.counts.queue_pairs;
  return pair;
}

// Of the attributes that the mask names.
void note(FakeProvider::Connected& connected, const ibv_qp_attr& attributes, int mask) {
  if ((mask & IBV_QP_PATH_MTU) != 0) connected.mtu = 128U << attributes.path_mtu;
  if ((mask & IBV_QP_AV) != 0) {
    connected.service_level = attributes.ah_attr.sl;
    connected.gid_index = attributes.ah_attr.grh.sgid_index;
    connected.traffic_class = attributes.ah_attr.grh.traffic_class;
  }
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) connected.reads_in = attributes.max_dest_rd_atomic;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) connected.reads_out = attributes.max_rd_atomic;
  if ((mask & IBV_QP_TIMEOUT) != 0) connected.timeout = attributes.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0) connected.retries = attributes.retry_cnt;
}

int modify_qp(ibv_qp* raw, ibv_qp_attr* attributes, int mask) {
  State& state = current_state();
  const std::lock_guard lock(state.mutex);
  auto& pair = *static_cast<FakePair*>(raw);
  const ibv_qp_state from = pair.state;
  const ibv_qp_state to = attributes->qp_state;
  const bool allowed = to == IBV_QPS_ERR || (from == IBV_QPS_RESET && to == IBV_QPS_INIT) ||
                       (from == IBV_QPS_INIT && to == IBV_QPS_RTR) ||
                       (from == IBV_QPS_RTR && to == IBV_QPS_RTS);
  if (!allowed) return EINVAL;
  note(state.connected, *attributes, mask);
  if ((mask & IBV_QP_DEST_QPN) != 0) pair.peer = attributes->dest_qp_num;
  if (to == IBV_QPS_ERR) {
    state.stop(pair);
  } else {
    pair.state = to;
    const auto sender = state.pairs.find(pair.peer);
    if (sender != state.pairs.end() && !state.holding) state.work(*sender->second, ~0U);
  }
  return 0;
}

int destroy_qp(ibv_qp* raw) {
  const std::lock_guard lock(current_state().mutex);
  auto* pair = static_cast<FakePair*>(raw);
  current_state().pairs.erase(pair->qp_num);
  std::erase_if(static_cast<FakeContext*>(pair->context)->events, [pair](const ibv_async_event& event) {
    return event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == pair;
  });
  delete pair;
  return 0;
}

int get_async_event(ibv_context* raw, ibv_async_event* out) {
  const std::lock_guard lock(current_state().mutex);
  auto& context = *static_cast<FakeContext*>(raw);
  if (context.events.empty()) {
    eventfd_t ignored = 0;
    ::eventfd_read(context.async_fd, &ignored);
    errno = EAGAIN;
    return -1;
  }
  *out = context.events.front();
  context.events.pop_front();
  return 0;
}

void ack_async_event(ibv_async_event* /*event*/) {}

const char* wc_status_str(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_WR_FLUSH_ERR: return "flushed";
    case IBV_WC_REM_ACCESS_ERR: return "remote access error";
    case IBV_WC_RETRY_EXC_ERR: return "transport retry counter exceeded";
    default: return "local protection error";
  }
}

const char* event_type_str(ibv_event_type type) {
  return type == IBV_EVENT_PORT_ERR ? "port error" : type == IBV_EVENT_PORT_ACTIVE ? "port active" : "access";
}

}  // namespace

Library fake_library() {
  Library library;
  library.get_device_list = get_device_list;
  library.free_device_list = free_device_list;
  library.get_device_name = get_device_name;
  library.open_device = open_device;
  library.close_device = close_device;
  library.query_device = query_device;
  library.query_port = query_port;
  library.query_gid_table = query_gid_table;
  library.alloc_pd = alloc_pd;
  library.dealloc_pd = dealloc_pd;
  library.reg_mr = reg_mr;
  library.dereg_mr = dereg_mr;
  library.create_comp_channel = create_comp_channel;
  library.destroy_comp_channel = destroy_comp_channel;
  library.create_cq = create_cq;
  library.destroy_cq = destroy_cq;
  library.get_cq_event = get_cq_event;
  library.ack_cq_events = ack_cq_events;
  library.create_qp = create_qp;
  library.modify_qp = modify_qp;
  library.destroy_qp = destroy_qp;
  library.get_async_event = get_async_event;
  library.ack_async_event = ack_async_event;
  library.wc_status_str = wc_status_str;
  library.event_type_str = event_type_str;
  return library;
}

}  // namespace p2p::verbs::testing
