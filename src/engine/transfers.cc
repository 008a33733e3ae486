// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/transfers.h"

#include <utility>

#include "base/error.h"
#include "engine/detour.h"
#include "engine/prepared_list.h"

namespace p2p::engine {

std::shared_ptr<TransferState> Transfers::start(Operation operation, std::span<const LocalSpan> local,
                                                std::span<const RemoteSpan> remote,
                                                const PostOptions& options) {
  if (Status here = parts_.regions->check_process(); !here) return failed_transfer(here.error());
  std::uint64_t bytes = 0;
  for (const LocalSpan& span : local) bytes += span.size;
  under_way_.fetch_add(1, std::memory_order_acq_rel);
  auto state = records_.start(operation, bytes, local.size(), options);
  auto gate = gate_behind(options.cuda_stream);
  if (!gate) {
    fail_early(*state, gate.error());
    return state;
  }
  const auto list = build(operation, local, remote);
  if (!list) {
    fail_early(*state, list.error());
  } else if (*list) {
    let_waiter_assist(**list, *state, launch(*list, state, options, std::move(*gate)));
  } else {
    park(std::make_shared<ParkedTransfer>(operation, std::vector<LocalSpan>(local.begin(), local.end()),
                                          std::vector<RemoteSpan>(remote.begin(), remote.end()), options,
                                          std::move(*gate), state));
  }
  return state;
}

std::shared_ptr<TransferState> Transfers::post(const std::shared_ptr<const SegmentList>& list,
                                               const PostOptions& options) {
  if (Status here = parts_.regions->check_process(); !here) return failed_transfer(here.error());
  under_way_.fetch_add(1, std::memory_order_acq_rel);
  auto state = records_.start(list->operation, list->bytes, list->segments(), options);
  auto gate = gate_behind(options.cuda_stream);
  if (gate) {
    let_waiter_assist(*list, *state, launch(list, state, options, std::move(*gate)));
  } else {
    fail_early(*state, gate.error());
  }
  return state;
}

Result<std::shared_ptr<const SegmentList>> Transfers::build(Operation operation,
                                                            std::span<const LocalSpan> local,
                                                            std::span<const RemoteSpan> remote,
                                                            const HeldRegions& held) const {
  if (Status here = parts_.regions->check_process(); !here) return tl::unexpected(here.error());
  if (parts_.life->state() != ConnectionState::kOpen) {
    if (Status usable = parts_.life->status(); !usable) return tl::unexpected(usable.error());
    if (parts_.life->state() == ConnectionState::kConnecting) return std::shared_ptr<const SegmentList>();
  }
  const ListContext context{
      [this, &held](RegionId id) {
        auto region = held.find(id);
        return region ? region : parts_.regions->find(id);
      },
      [this](RemoteRegionId id) { return parts_.imports->find(id); },
      [this](const Region& here, const RemoteRegion& there) { return router_->choose(here, there); }};
  return build_list(operation, local, remote, context);
}

// The channel on which all of it was started on this thread, if it was.
std::shared_ptr<Slot> Transfers::launch(const std::shared_ptr<const SegmentList>& list,
                                        const std::shared_ptr<TransferState>& state,
                                        const PostOptions& options, std::shared_ptr<const Gate> gate) {
  if (const Status entered = list->enter(); !entered) {
    fail_early(*state, entered.error());
    return nullptr;
  }
  const auto submission = std::make_shared<Submission>(
      shared_from_this(), Submission::Post{list, state, std::move(gate), options.notification});
  if (list->portions.empty()) {
    submission->end();
    return nullptr;
  }
  state->set_cancel([weak = std::weak_ptr(submission)] {
    if (const auto one = weak.lock()) one->cancel();
  });
  return submit(*list, submission);
}

void Transfers::cancel(const Submission& submission) {
  for (const std::size_t transport : submission.transports()) {
    if (const auto lane = router_->lane(transport)) lane->wake_all();
  }
  parts_.lanes->abandon(submission.state());
}

void Transfers::ended(const Submission& submission, Status status) {
  submission.list().leave();
  if (const auto& notification = submission.notification(); status && notification) {
    parts_.notifications->send(*notification, std::make_shared<TransferState>(notification->size()));
  }
  finish(submission.list(), *submission.state(), std::move(status), submission.shares());
}

std::shared_ptr<Slot> Transfers::submit(const SegmentList& list,
                                        const std::shared_ptr<Submission>& submission) const {
  Deferred deferred;
  std::shared_ptr<Slot> started;
  for (const auto& portion : list.portions) {
    Piece piece{submission,
                {.operation = list.operation, .segments = portion.segments, .bytes = portion.bytes}};
    started = submit(std::move(piece), portion.transport, deferred);
  }
  deferred.run();
  return list.portions.size() == 1 ? started : nullptr;
}

std::shared_ptr<Slot> Transfers::submit(Piece piece, std::size_t transport, Deferred& deferred) const {
  piece.transport = transport;
  if (const auto lane = router_->lane(transport)) return lane->submit(std::move(piece), deferred);
  piece.fail({ErrorCode::kPeerGone, "the connection is closed"}, deferred);
  return nullptr;
}

// Null if it need not be moved any more.
Result<std::shared_ptr<const SegmentList>> Transfers::way_of(const Piece& piece,
                                                             std::optional<std::size_t> around) const {
  if (piece.submission->doomed()) return std::shared_ptr<const SegmentList>();
  return build_detour(piece.submission->list(), piece.batch,
                      [this, around](const Region& here, const RemoteRegion& there) {
                        return router_->choose(here, there, around);
                      });
}

void Transfers::send(Piece piece, const std::shared_ptr<const SegmentList>& way, Deferred& deferred) {
  if (!way) return piece.drop(deferred);
  const auto submission = piece.submission;
  std::vector<Piece> parts = piece.spread(way);
  for (std::size_t i = 0; i != parts.size(); ++i) {
    submit(std::move(parts[i]), way->portions[i].transport, deferred);
  }
  // Cancelled just now, it was looked for in the lanes of before.
  if (submission->state()->cancelled()) cancel(*submission);
}

// The router knows already that the transport of before is closed, so that each is taken once at most.
void Transfers::detour(Piece piece, const Error& why) {
  Deferred deferred;
  const auto way = way_of(piece, std::nullopt);
  if (way) {
    send(std::move(piece), *way, deferred);
  } else {
    piece.fail({why.code, fmt::format("{}; and then: {}", why.message, way.error().message)}, deferred);
  }
  deferred.run();
}

// Once: two transports that both lose their channels would have it for ever.
void Transfers::divert(Piece piece, const Error& why) {
  Deferred deferred;
  Result<std::shared_ptr<const SegmentList>> way = fail(why.code, "{}", why.message);
  if (!piece.diverted) way = way_of(piece, piece.transport);
  if (way) {
    piece.diverted = true;
    piece.retries = 0;
    send(std::move(piece), *way, deferred);
  } else if (piece.worn_out()) {
    piece.fail(why, deferred);
  } else if (const auto lane = router_->lane(piece.transport)) {
    lane->return_piece(std::move(piece), deferred);
  } else {
    piece.fail({ErrorCode::kPeerGone, "the connection is closed"}, deferred);
  }
  deferred.run();
}

// Before the state is handed out; a caller that waits for a parked transfer sleeps.
void Transfers::let_waiter_assist(const SegmentList& list, TransferState& state,
                                  const std::shared_ptr<Slot>& started) const {
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

// Until the peer's word about all of its regions is there, however many they are: it is looked at once.
void Transfers::park(const std::shared_ptr<ParkedTransfer>& parked) {
  for (const LocalSpan& span : parked->local) {
    if (parked->held.find(span.region)) continue;
    if (const auto region = parts_.regions->find(span.region)) parked->held.add(region);
  }
  const auto state = parked->state;
  if (!parked_.add(parked)) return fail_early(*state, parts_.life->status().error());
  const std::weak_ptr<Transfers> weak = weak_from_this();
  const std::weak_ptr<TransferState> weak_state = state;
  state->set_cancel([weak, weak_state] {
    const auto self = weak.lock();
    const auto one = weak_state.lock();
    if (!self || !one || !self->parked_.take(*one)) return;
    self->fail_early(*one,
                     {ErrorCode::kCancelled, fmt::format("transfer of {} bytes: cancelled", one->bytes())});
  });
  parts_.imports->when_resolved(parked->remote, [weak, weak_state] {
    const auto self = weak.lock();
    const auto one = weak_state.lock();
    if (self && one) self->start_parked(*one);
  });
}

void Transfers::start_parked(const TransferState& state) {
  auto parked = parked_.take(state);
  if (!parked) return;
  const auto list = build(parked->operation, parked->local, parked->remote, parked->held);
  if (!list) return fail_early(*parked->state, list.error());
  if (!*list) return park(parked);
  launch(*list, parked->state, parked->options, std::move(parked->gate));
}

void Transfers::build_later(const std::shared_ptr<PreparedList>& list, std::span<const RemoteSpan> remote) {
  parts_.imports->when_resolved(remote, [weak = std::weak_ptr(list)] {
    if (const auto one = weak.lock()) one->build();
  });
}

void Transfers::close(const Error& error) {
  for (const auto& [state, one] : parked_.close()) fail_early(*one->state, error);
}

}  // namespace p2p::engine
