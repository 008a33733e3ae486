// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "drivers/socket/poll_set.h"
#include "transport/close_handshake.h"
#include "transport/rdma/address.h"
#include "transport/rdma/deadlines.h"
#include "transport/rdma/device_watch.h"
#include "transport/rdma/fabric.h"
#include "transport/rdma/link.h"
#include "transport/rdma/path_chooser.h"
#include "transport/rdma/request_queue.h"
#include "transport/transport.h"

namespace p2p::rdma {

struct ChannelConfig {
  std::shared_ptr<const Fabric> fabric;
  RdmaOptions options;
  std::chrono::milliseconds connect_timeout{};
  std::chrono::milliseconds keepalive{};
};

/// One reliable connection of two queue pairs. The peer's program takes no part in transfers. When a request
/// fails that names memory (a wrong key or range), it alone fails, and both channels replace their queue
/// pairs and go on; when the peer or the path to it is gone, the channel is lost.
class RdmaChannel : public Channel {
 public:
  static Result<std::unique_ptr<Channel>> open(const ChannelSetup& setup, ChannelConfig config);
  ~RdmaChannel() override;

  std::vector<std::byte> address() const override;
  Status connect(std::span<const std::byte> peer_address) override;
  ChannelState state() const override;
  Error error() const override { return error_; }
  bool post(const Batch& batch) override;
  bool progress(std::vector<Completion>& completions) override;
  void abandon(BatchId id) override { requests_.abandon(id); }
  int ready_fd() const override { return polls_.fd(); }
  bool busy() const override;
  Status on_control(std::span<const std::byte> message) override;
  bool heard_within(std::chrono::milliseconds time) const override {
    return heard_at_ && Clock::now() - *heard_at_ <= time;
  }
  std::string describe() const override { return description_; }

 private:
  using Clock = std::chrono::steady_clock;

  enum class Phase : std::uint8_t {
    kAddressing,  ///< has a queue pair, and waits for the address of the peer's
    kGreeting,    ///< connected; waits for the peer's word that it is too
    kReady,
    kClosing,  ///< lost; waits until the peer's queue pair is gone as well
    kFailed,
  };

  RdmaChannel(const ChannelSetup& setup, ChannelConfig config, const Nic& nic, socket::PollSet polls);

  Status open_link();
  Status connect_pair(const Address& peer);
  Status greet();
  void become_ready();
  bool poll_queue();
  bool take(const verbs::WorkCompletion& completion);
  bool arm();

  bool look_around();
  void handle(const verbs::Event& event);
  void look_at_clock();
  void take_failure(const verbs::WorkCompletion& completion);
  void repair();
  void drop_link();
  void lose(ErrorCode code, const std::string& why);
  void lose(const Error& error);  ///< of a call that knows the device, not the peer
  void finish();
  Status on_address(std::span<const std::byte> bytes);

  const ChannelSetup setup_;
  const ChannelConfig config_;
  const Nic& nic_;  ///< of config_.fabric
  const std::shared_ptr<verbs::Device> device_;
  const PathChooser paths_;
  std::string description_;
  CloseHandshake close_handshake_;

  Phase phase_ = Phase::kAddressing;
  bool was_ready_ = false;
  std::uint32_t generation_ = 0;
  unsigned repairs_ = 0;  ///< since a batch ended last
  Error error_;
  std::optional<Clock::time_point> heard_at_;  ///< what the peer's NIC last did for this one

  socket::PollSet polls_;
  std::optional<DeviceWatch> watch_;  ///< there once it is open
  std::unique_ptr<Link> link_;
  RequestQueue requests_;
  Deadlines deadlines_{polls_};
  unsigned idle_turns_ = 0;
};

}  // namespace p2p::rdma
