// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/staging.h"
#include "transport/cma/file_exchange.h"
#include "transport/cma/meeting.h"
#include "transport/cma/process_copier.h"
#include "transport/peer_access.h"
#include "transport/peer_end.h"
#include "transport/served_copies.h"
#include "transport/transport.h"

namespace p2p::cma {

/// Bytes of one batch, and of a pinned slot: long enough to make the system call cheap, short enough that
/// workers share a transfer evenly.
inline constexpr std::uint64_t kMaxBatchBytes = std::uint64_t{1} << 20;
inline constexpr std::size_t kMaxBatchSegments = kMaxRequestPieces;

/// Slots of a channel for each direction: one is with the processor and the others with the device. On a
/// machine with H200 GPUs eight channels reached 31 to 36 GB/s with two of them, 41 to 48 with three or four;
/// PCIe gives 55.
inline constexpr std::size_t kStagedBatches = 4;

/// What a channel has of the endpoint's staging. By the kernel that stands by goes what is short enough that
/// the next one is brought while this one is copied.
inline constexpr device::Staging::Share kStagingShare{.slots = {kStagedBatches, 0, kStagedBatches},
                                                      .standby_bytes = std::uint64_t{256} << 10};

/// A batch that goes through a slot is copied by the owner of the peer's memory if it has so many pieces, or
/// if the segments that it is cut from have so many bytes, so that several threads are at them. Pages of 4
/// KiB are locked one by one for a process that writes to them from outside, and its threads wait for each
/// other there. What is shorter, and has few pieces, is through before threads of the owner are awake:
/// between an H100 and host memory 1 MiB took 120 to 160 us, and 150 to 190 by the owner, 4 MiB 400 to 500
/// and 330 to 370.
inline constexpr std::size_t kOwnerPieces = 32;
inline constexpr std::uint64_t kOwnerBytes = std::uint64_t{4} << 20;

/// Of batches below this the owner gets one at a time over one channel: they were cut small so that several
/// threads copy at once, and a channel that only asks would take all of them.
inline constexpr std::uint64_t kSpreadBytes = std::uint64_t{512} << 10;

/// So long a channel that waits for the owner is polled before its thread sleeps: it copies a batch, or wakes
/// up.
inline constexpr std::chrono::microseconds kOwnersTurn{500};

/// What is next for a batch that goes through a slot.
enum class Step : std::uint8_t {
  kToSlot,    ///< of a write: a device fills the slot
  kToAsk,     ///< the owner is to be asked
  kAsked,     ///< it uses the slot
  kAnswered,  ///< it says how that ended
  kFromSlot,  ///< of a read: a device empties the slot
};

/// A batch that goes through a slot, or two.
struct Staged {
  Batch batch;
  device::Staging::Slot* slot = nullptr;  ///< of device memory
  std::int64_t shared = -1;               ///< where the peer's memory is out of reach
  bool by_owner = false;
  Step step = Step::kToSlot;
  bool abandoned = false;
  Status outcome{};  // of the owner
};

/// A path to one process of this host. `post` copies host memory at once. What goes through a slot is copied
/// by `progress`, or by the peer's `progress`, which is asked for it. It also reports all that was copied,
/// takes words and watches the peer.
class CmaChannel : public Channel, public LeavesPeer {
 public:
  ~CmaChannel() override {
    if (awaits_owner()) leave();
    peer_.hang_up();
    if (staging_) staging_->close();
  }

  /// `regions`: those of this side that the peer may have copied.
  static Result<std::unique_ptr<Channel>> open(const ChannelSetup& setup,
                                               std::shared_ptr<device::Staging> staging, PeerAccess regions,
                                               const socket::Place& place = {});

  std::vector<std::byte> address() const override { return meeting_.address(); }
  Status connect(std::span<const std::byte> peer_address) override { return meeting_.connect(peer_address); }
  ChannelState state() const override { return state_; }
  Error error() const override { return error_; }
  bool post(const Batch& batch) override;
  bool progress(std::vector<Completion>& completions) override;
  void abandon(BatchId id) override;
  int ready_fd() const override { return peer_.events.get(); }
  bool busy() const override;
  Left leave() override;
  bool carries_messages() const override { return true; }
  bool say(std::span<const std::byte> block) override;
  bool enter_polling() override { return serves() && rings_.enter_polling(); }
  bool arm_events() override { return !serves() || rings_.arm_events(peer_.socket); }
  std::string describe() const override { return peer_.describe(); }

 private:
  using Clock = std::chrono::steady_clock;

  CmaChannel(const ChannelSetup& setup, std::shared_ptr<device::Staging> staging, PeerAccess regions,
             const socket::Place& place);

  bool serves() const { return state_ == ChannelState::kReady && !closing_; }
  bool meet();
  bool move();
  bool take_words();
  bool may_be_taken_up() const;
  Status copy(const Batch& batch, std::byte* staged = nullptr);

  bool post_staged(const Batch& batch, bool reaches);
  std::optional<Status> begin(Staged& staged);
  void move_staged();
  std::optional<Status> advance(Staged& staged);
  std::optional<Status> send_on(Staged& staged);
  std::optional<Status> ask(Staged& staged);
  std::optional<Status> land(Staged& staged);
  void give_back(const Staged& staged);
  void fail_staged(const Error& why);
  bool awaits_owner() const;

  bool noted(Result<bool> written);
  bool take_requests();
  Status take_request();
  Status take_outcome(CopyOutcome outcome);
  bool serve();

  void fail_if_lost();
  void fail_with(Error error);
  void finish();

  const ChannelSetup setup_;
  Peer peer_;
  Meeting meeting_;
  ChannelState state_ = ChannelState::kConnecting;
  Error error_;

  unsigned turns_ = 0;
  bool lost_ = false;            ///< the peer is gone, seen while copying
  std::optional<Error> breach_;  ///< of the protocol, by the peer: the channel is to fail
  bool closing_ = false;         ///< it fails, once the peer has let go of its slots

  Rings rings_;
  Bytes block_;  ///< scratch

  FileExchange files_;  ///< where the peer is apart
  ServedCopies served_;
  std::optional<CopyOutcome> answer_;  ///< for which there was no room yet
  Clock::time_point poll_until_{};     ///< while the owner copies
  ProcessCopier copier_;
  SharedSlots slots_;  ///< where the peer is apart
  std::vector<Completion> done_;
  std::shared_ptr<device::Staging> staging_;  ///< until the channel fails
  std::vector<Staged> staged_;
  std::vector<device::StagedPiece> pieces_;  ///< scratch
};

}  // namespace p2p::cma
