// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/staging.h"
#include "transport/cma/handshake.h"
#include "transport/cma/process_copier.h"
#include "transport/peer_end.h"
#include "transport/transport.h"
#include "transport/word_ring.h"

namespace p2p::cma {

/// Bytes of one batch, and of a pinned slot: long enough to make the system call cheap, short enough that
/// workers share a transfer evenly.
inline constexpr std::uint64_t kMaxBatchBytes = std::uint64_t{1} << 20;
inline constexpr std::size_t kMaxBatchSegments = 1024;

/// Slots of a channel for each direction: one is with the processor and the others with the device. On a
/// machine with H200 GPUs eight channels reached 31 to 36 GB/s with two of them, 41 to 48 with three or four;
/// PCIe gives 55.
inline constexpr std::size_t kStagedBatches = 4;

/// What a channel has of the endpoint's staging. By the kernel that stands by goes what is short enough that
/// the next one is brought while this one is copied.
inline constexpr device::Staging::Share kStagingShare{.slots = {kStagedBatches, 0, kStagedBatches},
                                                      .standby_bytes = std::uint64_t{256} << 10};

/// A path to one process of this host. `post` copies host memory at once; `progress` copies what a device had
/// to bring first, reports all of it, takes words from the ring and watches the peer. A socket stays open
/// between the two channels so that each learns of the other's end, and can be woken for words: who shuts it
/// copies nothing any more.
class CmaChannel : public Channel, public LeavesPeer {
 public:
  ~CmaChannel() override {
    hang_up();
    if (staging_) staging_->close();
  }

  static Result<std::unique_ptr<Channel>> open(const ChannelSetup& setup,
                                               std::shared_ptr<device::Staging> staging);

  std::vector<std::byte> address() const override { return address_.serialize(); }
  Status connect(std::span<const std::byte> peer_address) override;
  ChannelState state() const override { return state_; }
  Error error() const override { return error_; }
  bool post(const Batch& batch) override;
  bool progress(std::vector<Completion>& completions) override;
  void abandon(BatchId id) override;
  int ready_fd() const override { return events_.get(); }
  bool busy() const override { return !done_.empty() || !staged_.empty(); }
  std::unique_ptr<PeerEnd> leave() override;
  bool carries_words() const override { return true; }
  bool say(std::span<const std::byte> block) override;
  bool stir() override;
  bool rest() override;
  std::string describe() const override;

 private:
  /// A batch that goes through a slot.
  struct Staged {
    Batch batch;
    device::Staging::Slot* slot = nullptr;
    bool abandoned = false;
  };

  CmaChannel(const ChannelSetup& setup, std::shared_ptr<device::Staging> staging);

  Status check_host(const Host& peer) const;
  Status watch(const UniqueFd& fd) const;
  bool shake_hands();
  void accept_strangers();
  void receive_proof(UniqueFd& from);
  Status take_peer(const MemoryProof& proof);
  Status share_ring();
  Status send_proof(const UniqueFd& ring) const;
  bool take_words();
  void take_wakes();
  bool peer_is_alive() const;
  Status check_bounds(const Batch& batch) const;
  Status copy(const Batch& batch, std::byte* staged = nullptr);
  bool post_staged(const Batch& batch);
  Status begin(const Batch& batch, device::Staging::Slot& slot);
  void end_staged();
  Status finish(const Staged& staged);
  void fail_staged(const Error& why);
  void fail_if_lost();
  Error gone() const;
  void fail_with(Error error);
  void hang_up();

  const ChannelSetup setup_;
  Address address_;
  Token listener_name_{};  ///< of whichever side listens
  ChannelState state_ = ChannelState::kConnecting;
  Error error_;

  UniqueFd events_;  ///< epoll over the descriptors below
  UniqueFd listener_;
  std::vector<UniqueFd> strangers_;  ///< accepted, yet to prove themselves
  UniqueFd socket_;
  UniqueFd process_;  ///< pidfd: the number cannot be taken over unnoticed
  pid_t pid_ = 0;
  unsigned turns_ = 0;
  unsigned rests_ = 0;
  bool lost_ = false;  ///< the peer is gone, seen while copying

  std::unique_ptr<MemoryProof> mine_;  ///< on the heap: the peer reads `token` there
  UniqueFd ring_descriptor_;           ///< that came with the peer's proof
  RingMemory ring_;
  RingWriter writer_;
  RingReader reader_;
  Bytes block_;  ///< scratch

  ProcessCopier copier_;
  std::vector<Completion> done_;
  std::shared_ptr<device::Staging> staging_;  ///< until the channel fails
  std::vector<Staged> staged_;
  std::vector<device::StagedPiece> pieces_;  ///< scratch
};

}  // namespace p2p::cma
