// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "request.h"

#include <string>
#include <vector>

#include "failure.h"
#include "memory.h"

namespace p2p::nixl {
namespace {

// A caller that comes back within kLoop has nothing else to do, and is kept for a nap at most: longer where
// much is to be moved. One that looks after many requests, or once in a step of its own, is not.
constexpr std::chrono::microseconds kLoop{20};
constexpr std::chrono::microseconds kNap{50};
constexpr std::chrono::microseconds kLongNap{200};
constexpr std::uint64_t kMuch = std::uint64_t{1} << 20;

struct Spans {
  std::vector<LocalSpan> local;
  std::vector<RemoteSpan> remote;
};

// `again`: see RemoteMemory::import.
Result<Spans> spans_of(const Lists& lists, const Peer& peer, const Peer::Link& link, bool again) {
  const auto& here = lists.local.descs;
  const auto& there = lists.remote.descs;
  if (here.size() != there.size()) {
    return failure(ErrorCode::kInvalidArgument, "prepare a transfer: " + std::to_string(here.size()) +
                                                    " local descriptors, " + std::to_string(there.size()) +
                                                    " remote ones");
  }
  Spans spans;
  spans.local.reserve(here.size());
  spans.remote.reserve(there.size());
  const nixlBackendMD* last = nullptr;
  RemoteRegionId region{};
  for (std::size_t i = 0; i < here.size(); ++i) {
    const auto* local = static_cast<const LocalMemory*>(here[i].metadataP);
    const auto* remote = static_cast<const RemoteMemory*>(there[i].metadataP);
    if (local == nullptr || remote == nullptr || remote->peer() != &peer) {
      return failure(ErrorCode::kInvalidArgument, "prepare a transfer: descriptor " + std::to_string(i) +
                                                      " is not in memory of agent " + peer.agent());
    }
    if (remote != last) {
      const auto imported = remote->import(link, again);
      if (!imported) return tl::unexpected(imported.error());
      region = *imported;
      last = remote;
    }
    spans.local.push_back({local->id(), reinterpret_cast<std::byte*>(here[i].addr), here[i].len});
    spans.remote.push_back({region, there[i].addr, there[i].len});
  }
  return spans;
}

}  // namespace

Status Request::prepare(const Lists& lists) {
  auto link = peer_->link();
  if (!link) return tl::unexpected(link.error());
  link_ = std::move(*link);
  const Status prepared = prepare_on(lists, false);
  if (prepared || prepared.error().code != ErrorCode::kNotFound) return prepared;
  return prepare_on(lists, true);
}

// An owner may have taken memory back and registered it again: agents do not say so to those who know it.
Status Request::prepare_on(const Lists& lists, bool again) {
  prepared_ = {};
  const auto spans = spans_of(lists, *peer_, link_, again);
  if (!spans) return tl::unexpected(explain(spans.error()));
  auto prepared = lists.operation == NIXL_WRITE ? link_.connection.prepare_write(spans->local, spans->remote)
                                                : link_.connection.prepare_read(spans->local, spans->remote);
  if (!prepared) return tl::unexpected(explain(prepared.error()));
  prepared_ = std::move(*prepared);
  return {};
}

Status Request::post(const Lists& lists, const PostOptions& options) {
  const auto link = peer_->link();
  if (!link) return tl::unexpected(link.error());
  if (link->number != link_.number || !prepared_.valid()) {
    if (const Status prepared = prepare(lists); !prepared) return prepared;
  }
  transfer_ = prepared_.post(options);
  if (transfer_.done() && !transfer_.status() && transfer_.status().error().code == ErrorCode::kNotFound &&
      prepare_on(lists, true)) {
    transfer_ = prepared_.post(options);
  }
  asked_at_ = std::chrono::steady_clock::now();
  return {};
}

// What waited for a connection, or uses it after its end, fails with the cause of that end, such as that
// nobody listens: for the agent the peer is gone.
Error Request::explain(Error error) const {
  const Status ended = link_.connection.status();
  if (!ended && ended.error().code == error.code) error.code = ErrorCode::kPeerGone;
  return error;
}

nixl_status_t Request::check() {
  if (!transfer_.valid()) return NIXL_ERR_NOT_POSTED;
  if (!transfer_.done()) {
    if (!peer_->hopeless(link_.number)) return NIXL_IN_PROG;
    transfer_.cancel();
    return transfer_.done() ? NIXL_ERR_REMOTE_DISCONNECT : NIXL_IN_PROG;
  }
  return outcome();
}

nixl_status_t Request::check_again() {
  if (active()) {
    if (std::chrono::steady_clock::now() - asked_at_ < kLoop) {
      (void)transfer_.wait(transfer_.bytes() < kMuch ? kNap : kLongNap);
    }
    asked_at_ = std::chrono::steady_clock::now();
  }
  return check();
}

nixl_status_t Request::outcome() {
  const Status status = transfer_.status();
  if (status) return NIXL_SUCCESS;
  const Error error = explain(status.error());
  if (error.code != ErrorCode::kPeerGone) return refuse(error);
  peer_->suspect(link_.number);
  return peer_->in_doubt() ? NIXL_IN_PROG : NIXL_ERR_REMOTE_DISCONNECT;
}

bool Request::release(std::chrono::nanoseconds patience) {
  if (!active()) return true;
  transfer_.cancel();
  (void)transfer_.wait(patience);
  return transfer_.done();
}

}  // namespace p2p::nixl
