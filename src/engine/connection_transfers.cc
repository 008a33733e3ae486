// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/connection.h"
#include "engine/prepared_list.h"

// How a connection's transfers start, wait for the peer's word, and end.
namespace p2p::engine {
namespace {

// Up to this size a waiting caller moves the bytes itself rather than sleep and be woken.
constexpr std::uint64_t kAssistBytes = std::uint64_t{256} << 10;

}  // namespace

Result<std::shared_ptr<const SegmentList>> Connection::build(Operation operation,
                                                             std::span<const LocalSpan> local,
                                                             std::span<const RemoteSpan> remote,
                                                             const HeldRegions& held) {
  if (state() != ConnectionState::kOpen) {
    if (Status usable = status(); !usable) return tl::unexpected(usable.error());
    if (state() == ConnectionState::kConnecting) return std::shared_ptr<const SegmentList>();
  }
  const ListContext context{[this, &held](RegionId id) {
                              auto region = held.find(id);
                              return region ? region : context_->regions->find(id);
                            },
                            [this](RemoteRegionId id) { return imports_->find(id); },
                            [this](const Region& here, const RemoteRegion& there) {
                              return lanes_->router()->choose(here, there);
                            }};
  return build_list(operation, local, remote, context);
}

std::shared_ptr<TransferState> Connection::transfer(Operation operation, std::span<const LocalSpan> local,
                                                    std::span<const RemoteSpan> remote,
                                                    const PostOptions& options) {
  std::uint64_t bytes = 0;
  for (const LocalSpan& span : local) bytes += span.size;
  auto state = std::make_shared<TransferState>(bytes);
  started_.fetch_add(1, std::memory_order_relaxed);
  under_way_.fetch_add(1, std::memory_order_acq_rel);
  const auto gate = gate_behind(options.cuda_stream);
  if (!gate) {
    finish({}, state, {}, tl::unexpected(gate.error()));
    return state;
  }
  auto list = build(operation, local, remote);
  if (!list) {
    finish({}, state, {}, tl::unexpected(list.error()));
  } else if (*list) {
    let_waiter_assist(**list, *state, launch(*list, state, options, *gate));
  } else {
    park(std::make_shared<Parked>(operation, std::vector<LocalSpan>(local.begin(), local.end()),
                                  std::vector<RemoteSpan>(remote.begin(), remote.end()), options, *gate,
                                  state));
  }
  return state;
}

std::shared_ptr<TransferState> Connection::post(const std::shared_ptr<const SegmentList>& list,
                                                const PostOptions& options) {
  auto state = std::make_shared<TransferState>(list->bytes);
  started_.fetch_add(1, std::memory_order_relaxed);
  under_way_.fetch_add(1, std::memory_order_acq_rel);
  auto gate = gate_behind(options.cuda_stream);
  if (!gate) {
    finish({}, state, {}, tl::unexpected(gate.error()));
    return state;
  }
  let_waiter_assist(*list, *state, launch(list, state, options, std::move(*gate)));
  return state;
}

void Connection::hold(Parked& parked) const {
  for (const LocalSpan& span : parked.local) {
    if (parked.held.find(span.region)) continue;
    if (const auto region = context_->regions->find(span.region)) parked.held.add(region);
  }
}

// Until the peer's word about all of its regions is there, however many they are: it is looked at once.
void Connection::park(std::shared_ptr<Parked> parked) {
  hold(*parked);
  const auto state = parked->state;
  bool closed = false;
  {
    MutexLock lock(mutex_);
    closed = this->state() == ConnectionState::kClosed;
    if (!closed) parked_.emplace(state.get(), parked);
  }
  if (closed) return finish({}, state, {}, tl::unexpected(status().error()));
  const std::weak_ptr<Connection> weak = weak_from_this();
  const std::weak_ptr<TransferState> weak_state = state;
  state->set_cancel([weak, weak_state] {
    const auto self = weak.lock();
    const auto one = weak_state.lock();
    if (!self || !one || !self->take_parked(*one)) return;
    self->finish({}, one, {}, fail(ErrorCode::kCancelled, "transfer of {} bytes: cancelled", one->bytes()));
  });
  imports_->when_resolved(parked->remote, [weak, weak_state] {
    const auto self = weak.lock();
    const auto one = weak_state.lock();
    if (self && one) self->start_parked(*one);
  });
}

// Null: it was cancelled, or the connection has ended.
std::shared_ptr<Connection::Parked> Connection::take_parked(const TransferState& state) {
  MutexLock lock(mutex_);
  auto node = parked_.extract(&state);
  return node ? std::move(node.mapped()) : nullptr;
}

void Connection::start_parked(const TransferState& state) {
  auto parked = take_parked(state);
  if (!parked) return;
  auto list = build(parked->operation, parked->local, parked->remote, parked->held);
  if (!list) return finish({}, parked->state, {}, tl::unexpected(list.error()));
  if (!*list) return park(std::move(parked));
  launch(*list, parked->state, parked->options, std::move(parked->gate));
}

void Connection::build_later(const std::shared_ptr<PreparedList>& list, std::span<const RemoteSpan> remote) {
  imports_->when_resolved(remote, [weak = std::weak_ptr(list)] {
    if (const auto one = weak.lock()) one->build();
  });
}

void Connection::let_waiter_assist(const SegmentList& list, TransferState& state,
                                   const std::shared_ptr<Slot>& started) const {
  if (list.portions.size() != 1 || context_->options.spin.count() == 0 || state.done()) return;
  const auto lane = lanes_->router()->lane(list.portions.front().transport);
  if (!lane) return;
  if (lane->device_copies()) {
    if (!started) return;
    state.set_poll([lane, weak = std::weak_ptr(started)](const TransferState& one, auto deadline) {
      if (const auto slot = weak.lock()) lane->assist(one, deadline, slot);
    });
  } else if (list.bytes <= kAssistBytes) {
    state.set_poll([lane](const TransferState& one, auto deadline) { lane->assist(one, deadline); });
  }
}

std::shared_ptr<Slot> Connection::launch(const std::shared_ptr<const SegmentList>& list,
                                         const std::shared_ptr<TransferState>& state,
                                         const PostOptions& options, std::shared_ptr<const Gate> gate) {
  if (Status entered = enter(*list); !entered) {
    finish({}, state, {}, std::move(entered));
    return nullptr;
  }
  auto end = [self = shared_from_this(), list, state, options](Status status) {
    leave(*list);
    self->finish(*list, state, options, std::move(status));
  };
  if (list->portions.empty()) {
    end({});
    return nullptr;
  }
  state->set_cancel([lanes = lanes_, list, weak = std::weak_ptr(state)] {
    const auto one = weak.lock();
    if (!one) return;
    for (const auto& portion : list->portions) {
      if (const auto lane = lanes->router()->lane(portion.transport)) lane->wake_all();
    }
    lanes->abandon(one);
  });
  const auto submission = std::make_shared<Submission>(list, state, std::move(gate), std::move(end));
  Ended ended;
  std::shared_ptr<Slot> started;
  for (const auto& portion : list->portions) {
    auto part = std::make_shared<Part>();
    part->submission = submission;
    part->portion = &portion;
    if (const auto lane = lanes_->router()->lane(portion.transport)) {
      started = lane->submit(std::move(part), ended);
    } else {
      submission->set_error({ErrorCode::kPeerGone, "the connection is closed"});
      part->close_one(ended);
    }
  }
  end_all(ended);
  return list->portions.size() == 1 ? started : nullptr;
}

Status Connection::enter(const SegmentList& list) {
  for (std::size_t i = 0; i < list.remotes.size(); ++i) {
    if (list.remotes[i]->add_user()) continue;
    const Error error = list.remotes[i]->error();
    while (i-- > 0) list.remotes[i]->remove_user();
    return tl::unexpected(error);
  }
  for (const auto& local : list.locals) local->add_user();
  return {};
}

void Connection::leave(const SegmentList& list) {
  for (const auto& remote : list.remotes) remote->remove_user();
  for (const auto& local : list.locals) local->remove_user();
}

void Connection::finish(const SegmentList& list, const std::shared_ptr<TransferState>& state,
                        const PostOptions& options, Status status) {
  if (status) {
    completed_.fetch_add(1, std::memory_order_relaxed);
    (list.operation == Operation::kWrite ? written_ : read_).fetch_add(list.bytes, std::memory_order_relaxed);
    if (options.notification) {
      notifications_->send(*options.notification,
                           std::make_shared<TransferState>(options.notification->size()));
    }
  } else {
    failed_.fetch_add(1, std::memory_order_relaxed);
  }
  // Before anybody can know that it is done: who knows may close the connection, and finds it drained then.
  under_way_.fetch_sub(1, std::memory_order_acq_rel);
  state->finish(std::move(status));
  if (this->state() != ConnectionState::kOpen) changed();
}

std::shared_ptr<TransferState> Connection::send(std::span<const LocalSpan> message) {
  if (Status usable = status(); !usable) return failed_transfer(usable.error());
  return messages_->send(message);
}

std::shared_ptr<TransferState> Connection::receive(std::span<const LocalSpan> into) {
  if (Status usable = status(); !usable) return failed_transfer(usable.error());
  return messages_->receive(into);
}

std::shared_ptr<TransferState> Connection::notify(std::string_view payload) {
  auto state = std::make_shared<TransferState>(payload.size());
  if (Status usable = status(); !usable) {
    state->finish(std::move(usable));
  } else {
    notifications_->send(payload, state);
  }
  return state;
}

Result<RemoteSpan> Connection::import_receive(const wire::ReceiveSpan& span) {
  RegionDescriptor descriptor{
      span.address,          span.size, {static_cast<MemoryKind>(span.kind), span.device},
      RegionId{span.region}, span.key,  0};
  {
    MutexLock lock(mutex_);
    descriptor.incarnation = peer_.incarnation;
  }
  auto region = imports_->import(descriptor);
  if (!region) return tl::unexpected(region.error());
  return RemoteSpan{*region, span.address, span.size};
}

}  // namespace p2p::engine
