// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/job.h"
#include "transport/cuda_ipc/copies/planner.h"
#include "transport/cuda_ipc/copies/warmup.h"
#include "transport/cuda_ipc/memory/regions.h"
#include "transport/cuda_ipc/memory/ring_leases.h"
#include "transport/cuda_ipc/requests/advertised_regions.h"
#include "transport/cuda_ipc/requests/mail.h"
#include "transport/cuda_ipc/requests/offered_regions.h"
#include "transport/cuda_ipc/ring_hands.h"
#include "transport/cuda_ipc/twin_link.h"
#include "transport/transport.h"

namespace p2p::cuda_ipc {

/// Copies between local memory and a peer's device memory; the peer takes no part. All of a batch goes to the
/// device whose memory is local, so that writes are pushed and reads are pulled. Where the peer's memory is
/// private to its process, the peer is asked to copy, and does the same from its side; where that of both is,
/// each copies to and from a ring of the peer's.
class IpcChannel : public Channel, public LeavesPeer {
 public:
  struct Own {
    ProcessId process;
    Bytes address;
    std::shared_ptr<Warmup> warmup;
    TwinLink link{};
    ControlLink* control = nullptr;
    std::shared_ptr<AdvertisedRegions> advertised;  // these three serve memory that one side alone reaches
    PeerAccess regions;
    OfferedRegions::Import import;
    std::shared_ptr<RingLeases> leases;
  };
  explicit IpcChannel(Own own);
  ~IpcChannel() override;

  std::vector<std::byte> address() const override { return own_.address; }
  Status connect(std::span<const std::byte> peer_address) override;
  ChannelState state() const override { return state_; }
  Error error() const override { return error_; }
  bool post(const Batch& batch) override;
  bool progress(std::vector<Completion>& completions) override;
  void abandon(BatchId id) override;
  int ready_fd() const override { return -1; }
  Left leave() override;
  bool busy() const override { return !flights_.empty() || !served_.empty() || full_ != nullptr; }
  Status on_control(std::span<const std::byte> message) override;
  bool enter_polling() override {
    mail_.enter_polling();
    return true;
  }
  bool arm_events() override { return mail_.arm_events(); }
  std::string describe() const override { return description_; }

 private:
  /// A batch under way.
  struct Flight : Plan {
    BatchId id{};
    std::unique_ptr<RingJob> ringed;
    bool awaits_peer = false;            // which has not said yet how that ended
    std::unique_ptr<ServedCopy> served;  // set: the batch is the peer's, and `id` means nothing
  };

  bool plan(const Batch& batch, Flight& flight);
  static void start(Flight& flight);
  void ask(Flight& flight, Operation operation);
  Status offer(const LocalMemory& region);
  Result<bool> take_mail();
  Status take(ByteView message, bool by_link);
  Status take_met(const TwinMet& met);
  Status take_leased(const RingOffer& offer);
  Status take_outcome(CopyOutcome outcome);
  void use_ring(Flight& flight, Operation operation);
  void serve();
  bool serve(std::unique_ptr<ServedCopy> copy);
  void end(Flight& flight, std::vector<Completion>& completions);
  static bool advance(Flight& flight);

  Own own_;
  ChannelState state_ = ChannelState::kConnecting;
  Error error_;
  bool awaits_twin_ = false;  // which is to say whether it has met this one
  std::string description_ = "not connected";
  device::OwnCopiers copiers_;
  std::deque<Flight> flights_;
  OfferedRegions offered_;
  ServedCopies served_;
  std::unique_ptr<ServedCopy> full_;  // a batch of the peer's for which no list was free
  Mail mail_;
  RingHands ring_hands_{copiers_, *own_.warmup, mail_};  // for memory that is private on both sides
  RingCopies ring_copies_{ring_hands_};
  Bytes words_;  // kept for its capacity
};

}  // namespace p2p::cuda_ipc
