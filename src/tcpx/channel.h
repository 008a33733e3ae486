// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "device/landing_plan.h"
#include "device/unpacker.h"
#include "drivers/nccl_net/registration_cache.h"
#include "drivers/nccl_net/window.h"
#include "p2p/memory.h"
#include "p2p/result.h"
#include "tcpx/session.h"

namespace tcpx {

namespace net = p2p::nccl_net;

/// What is left of the posts of one TcpxTransfer. Guarded by the session's lock.
struct Progress {
  std::uint64_t left = 0;  ///< chunks
  std::optional<p2p::Error> error;
};

struct Memory {
  std::byte* data = nullptr;
  std::size_t size = 0;
  p2p::MemoryPlace place;
  net::abi::PointerType type = net::abi::kPointerHost;
  std::uint64_t uses = 0;  ///< chunks under way
};
using Memories = std::map<std::uint64_t, Memory>;

/// One message of a comm.
struct Chunk {
  std::shared_ptr<Progress> progress;
  std::uint64_t mem_id = 0;
  Memory* memory = nullptr;  ///< stays while `uses` says so
  std::byte* data = nullptr;
  std::size_t size = 0;

  void end();
  void fail(const p2p::Error& error);
};

/// A comm to send on and the chunks for it, in order.
class SendChannel {
 public:
  SendChannel(net::SendComm comm, unsigned window)
      : registrations_(comm.comm), window_(std::move(comm), window) {}
  SendChannel(SendChannel&&) noexcept = default;

  void add(Chunk chunk) { waiting_.push_back(std::move(chunk)); }
  p2p::Result<bool> progress();
  std::size_t waiting() const { return waiting_.size(); }
  std::size_t under_way() const { return posted_.size(); }
  void fail(const p2p::Error& error);
  void forget(std::uint64_t mem_id) { registrations_.forget(mem_id); }

 private:
  net::RegistrationCache registrations_;
  net::SendWindow window_;
  std::deque<Chunk> waiting_;
  std::deque<Chunk> posted_;
};

/// A comm to receive on and the chunks for it, in order.
class ReceiveChannel {
 public:
  /// `unpacker`: shared by the channels of a session; null: receives leave the pool through host memory.
  ReceiveChannel(net::RecvComm comm, unsigned window, std::shared_ptr<p2p::device::Unpacker> unpacker);
  ReceiveChannel(ReceiveChannel&&) noexcept = default;
  ~ReceiveChannel();

  void add(Chunk chunk) { waiting_.push_back(std::move(chunk)); }

  /// Posts receives and hands the unpacker what has come.
  p2p::Result<bool> receive();

  std::size_t waiting() const { return waiting_.size(); }
  std::size_t under_way() const { return posted_.size(); }
  std::size_t to_unpack() const { return landings_.size(); }

  /// Ends what is in place.
  p2p::Result<bool> finish();

  void fail(const p2p::Error& error);
  void forget(std::uint64_t mem_id) { registrations_.forget(mem_id); }

 private:
  /// A chunk that has come, until it is in its place.
  struct Landing {
    Chunk chunk;
    std::shared_ptr<p2p::device::Unpacker::Receive> receive;  ///< null: in place
  };

  p2p::Result<bool> post_next();
  p2p::Result<bool> take_arrival();
  p2p::Status copy(Landing& landing, std::vector<p2p::kernels::CopyBlock>& copies);
  void withdraw();

  std::shared_ptr<p2p::device::Unpacker> unpacker_;
  net::RegistrationCache registrations_;
  net::ReceiveWindow window_;
  p2p::device::LandingPlan plan_;  // of the receive that has come last
  std::deque<Chunk> waiting_;
  std::deque<Chunk> posted_;
  std::deque<Landing> landings_;
  p2p::device::SpareReceives spare_receives_;
};

}  // namespace tcpx
