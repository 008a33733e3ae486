// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "drivers/nccl_net/comm.h"
#include "drivers/socket/poll_set.h"
#include "transport/nccl_net/channel_address.h"
#include "transport/nccl_net/incoming.h"
#include "transport/nccl_net/outgoing.h"
#include "transport/transport.h"

namespace p2p::nccl_net {

/// What the transport gives to each of its channels.
struct ChannelConfig {
  std::shared_ptr<Plugin> plugin;
  Device device;
  std::vector<Device> devices;  ///< all that there are
  std::shared_ptr<const RegistrationTable> registrations;
  Flow flow;
  std::shared_ptr<device::Unpacker> unpacker;  ///< of the flow's device, shared by its channels
  std::uint64_t most_bytes = 0;  ///< of batches under way, or one batch; the rest is left to other channels
  std::chrono::milliseconds connect_timeout{10000};
  std::chrono::milliseconds keepalive{3000};
};

/// A comm in each direction. Connects, proves that both ends know the session's secret, then decides what
/// messages mean; Outgoing and Incoming move the bytes. A plugin may say "not yet" for ever, so the channels
/// ping each other over the control link. Belongs to one worker.
class NetChannel final : public Channel {
 public:
  static Result<std::unique_ptr<Channel>> open(const ChannelSetup& setup, ChannelConfig config);
  ~NetChannel() override;

  std::vector<std::byte> address() const override;
  Status connect(std::span<const std::byte> peer_address) override;
  ChannelState state() const override { return state_; }
  Error error() const override { return error_; }
  bool post(const Batch& batch) override;
  bool progress(std::vector<Completion>& completions) override;
  void abandon(BatchId id) override;
  int ready_fd() const override { return polls_.fd(); }
  bool busy() const override;
  Status on_control(std::span<const std::byte> message) override;
  std::string describe() const override;

 private:
  using Clock = std::chrono::steady_clock;

  /// A write of mine, until the peer has it all and no byte of it is in flight.
  struct Write {
    BatchId id{};
    std::uint64_t bytes = 0;
    std::shared_ptr<OutgoingBatch> out;
    bool cancel_due = false;  ///< to be told to the peer behind the last chunk that it hears of
    bool cancelled = false;   ///< told, or the peer need not be
    std::optional<Status> done;
  };

  /// A read of mine, until its last announced chunk has landed.
  struct Read {
    BatchId id{};
    std::vector<Piece> pieces;
    std::uint64_t bytes = 0;
    std::size_t next = 0;      // piece that the next chunk begins in
    std::uint64_t offset = 0;  // into it
    std::uint64_t announced = 0;
    std::size_t outstanding = 0;
    bool abandoned = false;
    std::optional<Error> ended;   ///< by the peer
    std::optional<Error> failed;  ///< to land here; the rest comes all the same
  };

  /// A write of the peer's.
  struct PeerWrite {
    std::size_t outstanding = 0;
    bool closed = false;
    Status status;
  };

  /// A read of the peer's.
  struct PeerRead {
    std::shared_ptr<OutgoingBatch> out;
  };

  NetChannel(const ChannelSetup& setup, ChannelConfig config, socket::PollSet polls, Listener listener);

  Result<bool> advance_connect();
  Status open_outgoing(SendComm comm);
  Status open_incoming(RecvComm comm);
  Incoming::Proof proof(Role sender, const Handle& receiver) const;
  Result<bool> move();
  void end_writes();
  Status tick(Clock::time_point now);
  bool end_batches();
  void lose(Error why, bool tell_peer);
  void send_message(const Message& message);
  void flush();

  Status hear(Message message);
  Status take(Message message);
  Status take(Chunk chunk);
  Status take(const ReadRequest& read);
  Status take(const Done& done);
  Status take(const Cancel& cancel);
  Result<Places> resolve(const Chunk& chunk);
  Result<Places> resolve(const std::vector<Range>& ranges) const;
  static Places slice(Read& read, std::uint64_t bytes);
  void landed(const Chunk& chunk, const Status& status);
  void end_peer_write(std::uint64_t batch);

  ChannelSetup setup_;
  ChannelConfig config_;
  socket::PollSet polls_;
  Listener listener_;
  ChannelAddress peer_;
  std::optional<Connector> connector_;
  std::optional<Outgoing> outgoing_;
  std::optional<Incoming> incoming_;
  bool proved_ = false;
  bool peer_proved_ = false;
  Clock::time_point deadline_;

  ChannelState state_ = ChannelState::kConnecting;
  Error error_;
  Clock::time_point heard_at_;
  Clock::time_point moved_at_;
  Clock::time_point next_tick_;
  Clock::time_point rest_until_;  // nothing is expected before, unless a batch or a message comes

  Bytes unsent_;                // messages that have not gone to the control link yet
  std::vector<Message> early_;  // from a peer that was ready before us

  std::vector<Completion> completions_;
  // By numbers that are never used again, unlike BatchIds: the peer may still look back on an earlier batch.
  std::uint64_t last_batch_ = 0;
  std::uint64_t bytes_under_way_ = 0;  // of `writes_` and `reads_`
  std::map<std::uint64_t, Write> writes_;
  std::map<std::uint64_t, Read> reads_;
  std::map<std::uint64_t, PeerWrite> peer_writes_;
  std::map<std::uint64_t, PeerRead> peer_reads_;
};

}  // namespace p2p::nccl_net
