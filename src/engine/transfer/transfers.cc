// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/transfer/transfers.h"

#include <utility>

#include "base/error.h"
#include "engine/transfer/prepared_list.h"
#include "engine/transfer/reroute.h"

namespace p2p::engine {

std::shared_ptr<TransferState> Transfers::start(Operation operation, std::span<const LocalSpan> local,
                                                std::span<const RemoteSpan> remote,
                                                const PostOptions& options,
                                                std::span<const StridedPair> strided) {
  if (Status here = parts_.regions->check_process(); !here) return failed_transfer(here.error());
  const std::uint64_t bytes = bytes_of(local, strided);
  auto state = begin(operation, bytes, local.size(), options);
  auto dependency = dependency_behind(options.cuda_stream);
  if (!dependency) {
    fail_early(*state, dependency.error());
    return state;
  }
  const auto list = build(operation, local, remote, strided);
  if (!list) {
    fail_early(*state, list.error());
  } else if (*list) {
    let_waiter_assist(**list, *state, launch(*list, state, options, std::move(*dependency)));
  } else {
    park(std::make_shared<PendingTransfer>(operation, std::vector<LocalSpan>(local.begin(), local.end()),
                                           std::vector<RemoteSpan>(remote.begin(), remote.end()),
                                           std::vector<StridedPair>(strided.begin(), strided.end()), options,
                                           std::move(*dependency), state));
  }
  return state;
}

std::shared_ptr<TransferState> Transfers::start(Operation operation, std::span<const LocalStrided> local,
                                                std::span<const RemoteStrided> remote,
                                                const PostOptions& options) {
  const auto list = StridedList::make(operation, local, remote);
  if (!list) return failed_transfer(list.error());
  return start(operation, list->local, list->remote, options, list->pairs);
}

std::shared_ptr<TransferState> Transfers::begin(Operation operation, std::uint64_t bytes, std::size_t spans,
                                                const PostOptions& options) {
  under_way_.fetch_add(1, std::memory_order_acq_rel);
  auto state = records_.start(operation, bytes, spans, options);
  state->set_cancel([weak = weak_from_this(), weak_state = std::weak_ptr(state)] {
    const auto self = weak.lock();
    const auto one = weak_state.lock();
    if (self && one) self->cancel(one);
  });
  return state;
}

std::shared_ptr<TransferState> Transfers::post(const std::shared_ptr<const SegmentList>& list,
                                               const PostOptions& options) {
  if (Status here = parts_.regions->check_process(); !here) return failed_transfer(here.error());
  auto state = begin(list->operation, list->bytes, list->segments(), options);
  auto dependency = dependency_behind(options.cuda_stream);
  if (dependency) {
    let_waiter_assist(*list, *state, launch(list, state, options, std::move(*dependency)));
  } else {
    fail_early(*state, dependency.error());
  }
  return state;
}

Result<std::shared_ptr<const SegmentList>> Transfers::build(Operation operation,
                                                            std::span<const LocalSpan> local,
                                                            std::span<const RemoteSpan> remote,
                                                            std::span<const StridedPair> strided,
                                                            const HeldRegions* held) const {
  if (Status here = parts_.regions->check_process(); !here) return tl::unexpected(here.error());
  const ConnectionState state = parts_.life->state();
  const bool goes_on = state == ConnectionState::kClosing && held != nullptr;
  if (state != ConnectionState::kOpen && !goes_on) {
    if (Status usable = parts_.life->status(); !usable) return tl::unexpected(usable.error());
    if (state == ConnectionState::kConnecting) return std::shared_ptr<const SegmentList>();
  }
  const ListContext context{
      [this, held](RegionId id) {
        auto region = held == nullptr ? nullptr : held->find(id);
        return region ? region : parts_.regions->find(id);
      },
      [this](RemoteRegionId id) { return parts_.imports->find(id); },
      [this](const Region& here, const RemoteRegion& there) { return router_->choose(here, there); },
      [this](std::size_t transport, const Registration& here, const RemoteKey& there) {
        return parts_.regions->transports()[transport].transport->takes_repeats(here, there);
      }};
  return build_list(operation, local, remote, context, strided);
}

// The channel on which all of it was started on this thread, if it was.
std::shared_ptr<ChannelRunner> Transfers::launch(const std::shared_ptr<const SegmentList>& list,
                                                 const std::shared_ptr<TransferState>& state,
                                                 const PostOptions& options,
                                                 std::shared_ptr<const StreamDependency> dependency) {
  if (const Status entered = list->enter(); !entered) {
    fail_early(*state, entered.error());
    return nullptr;
  }
  const auto request = std::make_shared<Request>(
      shared_from_this(), Request::Post{list, state, std::move(dependency), options.notification,
                                        options.priority, options.rate, options.verify});
  if (list->portions.empty()) {
    request->end();
    return nullptr;
  }
  auto started = submit(*list, request);
  if (state->cancelled()) cancel(state);  // while it was in no lane yet
  return started;
}

// Any lane may have some of it: reroutes go where they can.
void Transfers::cancel(const std::shared_ptr<TransferState>& state) {
  if (pending_.take(*state)) {
    return fail_early(
        *state, {ErrorCode::kCancelled, fmt::format("transfer of {} bytes: cancelled", state->bytes())});
  }
  for (std::size_t transport = 0; transport != parts_.regions->transports().size(); ++transport) {
    if (const auto lane = router_->lane(transport)) lane->wake_all();
  }
  parts_.lanes->abandon(state);
  parts_.verifier->abandon();
}

void Transfers::ended(const Request& request, Status status) {
  request.list().leave();
  if (const auto& notification = request.notification(); status && notification) {
    parts_.notifications->send(*notification, std::make_shared<TransferState>(notification->size()));
  }
  finish(request.list(), *request.state(), std::move(status), request.shares());
}

std::shared_ptr<ChannelRunner> Transfers::submit(const SegmentList& list,
                                                 const std::shared_ptr<Request>& request) const {
  PostUnlockActions actions;
  std::shared_ptr<ChannelRunner> started;
  for (const auto& portion : list.portions) {
    WorkItem item{request,
                  {.operation = list.operation, .segments = portion.segments, .bytes = portion.bytes}};
    started = submit(std::move(item), portion.transport, actions);
  }
  actions.run();
  return list.portions.size() == 1 ? started : nullptr;
}

std::shared_ptr<ChannelRunner> Transfers::submit(WorkItem item, std::size_t transport,
                                                 PostUnlockActions& actions) const {
  item.transport = transport;
  if (const auto lane = router_->lane(transport)) return lane->submit(std::move(item), actions);
  item.fail({ErrorCode::kPeerGone, "the connection is closed"}, actions);
  return nullptr;
}

// Null if it need not be moved any more.
Result<std::shared_ptr<const SegmentList>> Transfers::way_of(const WorkItem& item,
                                                             std::optional<std::size_t> around) const {
  if (item.request->aborted()) return std::shared_ptr<const SegmentList>();
  return build_reroute(item.request->list(), item.batch,
                       [this, around](const Region& here, const RemoteRegion& there) {
                         return router_->choose(here, there, around);
                       });
}

void Transfers::send(WorkItem item, const std::shared_ptr<const SegmentList>& way,
                     PostUnlockActions& actions) {
  if (!way) return item.drop(actions);
  const auto request = item.request;
  std::vector<WorkItem> parts = item.spread(way);
  for (std::size_t i = 0; i != parts.size(); ++i) {
    submit(std::move(parts[i]), way->portions[i].transport, actions);
  }
  // Cancelled just now, it was looked for in the lanes of before.
  if (request->state()->cancelled()) cancel(request->state());
}

// The router knows already that the transport of before is closed, so that each is taken once at most.
void Transfers::reroute(WorkItem item, const Error& why) {
  PostUnlockActions actions;
  const auto way = way_of(item, std::nullopt);
  if (way) {
    send(std::move(item), *way, actions);
  } else {
    item.fail({why.code, fmt::format("{}; and then: {}", why.message, way.error().message)}, actions);
  }
  actions.run();
}

void Transfers::verify(WorkItem item) {
  if (!item.request->aborted()) return parts_.verifier->verify(item);
  PostUnlockActions actions;
  item.drop(actions);
  actions.run();
}

// Once: two transports that both lose their channels would have it for ever.
void Transfers::reroute_stuck(WorkItem item, const Error& why) {
  PostUnlockActions actions;
  Result<std::shared_ptr<const SegmentList>> way = fail(why.code, "{}", why.message);
  if (!item.was_rerouted) way = way_of(item, item.transport);
  if (way) {
    item.was_rerouted = true;
    item.retries = 0;
    send(std::move(item), *way, actions);
  } else if (item.worn_out()) {
    item.fail(why, actions);
  } else if (const auto lane = router_->lane(item.transport)) {
    lane->return_item(std::move(item), actions);
  } else {
    item.fail({ErrorCode::kPeerGone, "the connection is closed"}, actions);
  }
  actions.run();
}

// Before the state is handed out; a caller that waits for a pending transfer sleeps.
void Transfers::let_waiter_assist(const SegmentList& list, TransferState& state,
                                  const std::shared_ptr<ChannelRunner>& started) const {
  if (list.portions.size() != 1) return;
  if (const auto lane = router_->lane(list.portions.front().transport)) {
    lane->let_waiter_assist(state, started);
  }
}

void Transfers::finish(const SegmentList& list, TransferState& state, Status status,
                       std::span<const TransportShare> shares) {
  records_.end(list, shares, state, status);
  // Before anybody can know that it is done: who knows may close the connection, and finds it drained then.
  under_way_.fetch_sub(1, std::memory_order_acq_rel);
  state.finish(std::move(status));
  if (parts_.life->state() != ConnectionState::kOpen) parts_.ended();
}

// Before any of it was started.
void Transfers::fail_early(TransferState& state, Error error) {
  finish({}, state, tl::unexpected(std::move(error)));
}

// Until the peer's message about all of its regions is there, however many they are: it is looked at once.
void Transfers::park(const std::shared_ptr<PendingTransfer>& pending) {
  for (const LocalSpan& span : pending->local) {
    if (pending->held.find(span.region)) continue;
    if (const auto region = parts_.regions->find(span.region)) pending->held.add(region);
  }
  const auto state = pending->state;
  if (!pending_.add(pending)) return fail_early(*state, parts_.life->status().error());
  const std::weak_ptr<Transfers> weak = weak_from_this();
  const std::weak_ptr<TransferState> weak_state = state;
  if (state->cancelled()) return cancel(state);  // while it was not pending
  parts_.imports->when_resolved(pending->remote, [weak, weak_state] {
    const auto self = weak.lock();
    const auto one = weak_state.lock();
    if (self && one) self->start_pending(*one);
  });
}

void Transfers::start_pending(const TransferState& state) {
  auto pending = pending_.take(state);
  if (!pending) return;
  const auto list =
      build(pending->operation, pending->local, pending->remote, pending->strided, &pending->held);
  if (!list) return fail_early(*pending->state, list.error());
  if (!*list) return park(pending);
  launch(*list, pending->state, pending->options, std::move(pending->dependency));
}

void Transfers::build_later(const std::shared_ptr<PreparedList>& list, std::span<const RemoteSpan> remote) {
  parts_.imports->when_resolved(remote, [weak = std::weak_ptr(list)] {
    if (const auto one = weak.lock()) one->build();
  });
}

void Transfers::close(const Error& error) {
  for (const auto& [state, one] : pending_.close()) fail_early(*one->state, error);
  parts_.verifier->close(error);
}

}  // namespace p2p::engine
