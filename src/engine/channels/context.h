// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/background.h"
#include "device/service.h"
#include "engine/loop/reactor.h"
#include "engine/memory/digests.h"
#include "engine/memory/peer_budget.h"
#include "engine/memory/region.h"
#include "engine/memory/region_watch.h"
#include "engine/observe/trace.h"
#include "engine/schedule/placement.h"
#include "engine/schedule/worker.h"
#include "p2p/options.h"
#include "transport/stream_port.h"
#include "wire/messages.h"

namespace p2p::engine {

/// What the connections of an endpoint share. The endpoint owns it and outlives their work.
struct Context {
  Options options;
  std::shared_ptr<device::Service> devices;  ///< what moves device memory
  std::shared_ptr<RegionTable> regions;
  std::shared_ptr<PeerBudget> peer_budget = std::make_shared<PeerBudget>(Options{}.max_peer_bytes);
  std::vector<std::shared_ptr<Worker>> workers;
  std::unique_ptr<Placement> placement;  ///< of the workers; null: they are left alone
  std::unique_ptr<Reactor> reactor;
  std::shared_ptr<StreamPort> port;  ///< the endpoint's
  std::shared_ptr<Trace> trace;      ///< of transfers; null: none
  RegionWatch watch;
  // Of regions that take long; the endpoint stops them.
  Background imports{"p2p-imports"};
  Background answers{"p2p-answers"};  ///< to peers that import
  std::shared_ptr<Digests> digests = std::make_shared<Digests>();
  Background digesting{"p2p-digest", digest_threads(),
                       kDigestLinger};  ///< what is verified, here and for peers

  /// Computed by this thread and those for digests that are idle.
  Result<std::uint64_t> digest(std::span<const Digests::Range> ranges) {
    return digests->compute(ranges, &digesting);
  }

  const TransportList& transports() const { return regions->transports(); }
};

using SendMessage = std::function<void(const wire::Message&)>;

}  // namespace p2p::engine
