// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "abi/types.h"
#include "p2p/transfer.h"
#include "peer.h"

namespace p2p::nixl {

/// The two lists of a transfer, as the agent gives them to prepXfer and again to each postXfer.
struct Lists {
  nixl_xfer_op_t operation = NIXL_READ;
  const nixlDescList<nixlMetaDesc>& local;
  const nixlDescList<nixlMetaDesc>& remote;
};

/// A transfer request: lists prepared for a link of the peer, posted any number of times, one at a time. Used
/// by one thread at a time.
class Request final : public nixlBackendReqH {
 public:
  explicit Request(std::shared_ptr<Peer> peer) : peer_(std::move(peer)) {}

  /// Checks the lists and keeps what they name.
  Status prepare(const Lists& lists);

  /// Prepares again first where the peer has a new link. kInvalidArgument while the last post is under way.
  Status post(const Lists& lists, const PostOptions& options);

  bool active() const { return transfer_.valid() && !transfer_.done(); }

  /// NIXL_IN_PROG, NIXL_SUCCESS or how the last post failed.
  nixl_status_t check();

  /// As `check`; but a thread that asks over and over is put to use, or to sleep, for a moment a call: it
  /// would only keep the processor from the threads that it waits for.
  nixl_status_t check_again();

  /// Ends the last post early if it is under way. False: memory may still be touched after `patience`.
  bool release(std::chrono::nanoseconds patience);

 private:
  Status prepare_on(const Lists& lists, bool again);
  nixl_status_t outcome();
  Error explain(Error error) const;

  const std::shared_ptr<Peer> peer_;
  Peer::Link link_;  // that prepared_ is for
  PreparedTransfer prepared_;
  Transfer transfer_;
  std::chrono::steady_clock::time_point asked_at_;  // posted or asked last
};

}  // namespace p2p::nixl
