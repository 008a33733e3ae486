// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>

#include "device/job.h"
#include "transport/cuda_ipc/copies/ring_copies.h"
#include "transport/cuda_ipc/copies/warmup.h"
#include "transport/cuda_ipc/memory/peer_ring.h"
#include "transport/cuda_ipc/requests/mail.h"

namespace p2p::cuda_ipc {

/// Copies of one channel by way of the peer's rings: this side's by its devices, the peer's by mail. What it
/// is made of outlives it.
class RingHands : public RingCopies::Hands {
 public:
  RingHands(device::OwnCopiers& copiers, Warmup& warmup, Mail& mail)
      : copiers_(copiers), warmup_(warmup), mail_(mail) {}

  Result<std::shared_ptr<RingSlots>> ring_for(const Segment& piece) override;
  Result<bool> start(RingLoad& load) override;
  bool finished(RingLoad& load, Status& status) override;
  void ask(const RingLoad& load) override;

  /// Messages go by words from now on, where the owner of the piece's memory has lent a ring that has some.
  void talk_by_words(const Segment& piece);

 private:
  RegionId offer_ring(const std::shared_ptr<PeerRing>& ring);

  device::OwnCopiers& copiers_;
  Warmup& warmup_;
  Mail& mail_;
  std::map<std::shared_ptr<PeerRing>, RegionId> rings_;  // that the peer was told of
};

}  // namespace p2p::cuda_ipc
