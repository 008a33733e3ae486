// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/copier.h"
#include "transport/cuda_ipc/firsts.h"
#include "transport/cuda_ipc/regions.h"
#include "transport/transport.h"

namespace p2p::cuda_ipc {

/// Copies between local memory and a peer's device memory; the peer takes no part. All of a batch goes to the
/// device whose memory is local, so that writes are pushed and reads are pulled.
class IpcChannel : public Channel {
 public:
  struct Own {
    ProcessId process;
    Bytes address;
    std::shared_ptr<Firsts> firsts;
  };
  explicit IpcChannel(Own own);
  ~IpcChannel() override;

  std::vector<std::byte> address() const override { return own_.address; }
  Status connect(std::span<const std::byte> peer_address) override;
  ChannelState state() const override { return state_; }
  Error error() const override { return error_; }
  bool post(const Batch& batch) override;
  bool progress(std::vector<Completion>& completions) override;
  void abandon(BatchId /*id*/) override {}  // what a device has begun ends by itself within moments
  int ready_fd() const override { return -1; }
  bool busy() const override { return !flights_.empty(); }
  std::string describe() const override { return description_; }

 private:
  struct Part {
    device::Copier* copier = nullptr;
    device::Copier::List* list = nullptr;
  };
  /// A batch under way.
  struct Flight {
    BatchId id{};
    std::vector<Part> parts;  // one a local device, so mostly one
    Status status;
  };
  /// What is the same for a run of segments.
  struct Path {
    const Registration* registration = nullptr;
    const RemoteKey* key = nullptr;
    Part part;
    std::byte* peer = nullptr;  // where the peer's region begins here
    device::Ways ways;
    std::span<std::byte* const> seams;  // of the local memory
  };

  enum class Planned : std::uint8_t { kYes, kFull };
  Planned plan(const Batch& batch, Flight& flight);
  static void add(const Path& path, const Segment& piece, std::byte* peer, bool write);
  Result<bool> find_path(const Segment& piece, Flight& flight, Path& path);
  Result<Part> part_for(int device, Flight& flight);
  Result<device::Copier*> copier_for(int device);
  Status try_probe(const SharedMemory& probe);
  void start(Flight& flight);
  bool advance(Flight& flight);
  void release(Flight& flight);

  const Own own_;
  ChannelState state_ = ChannelState::kConnecting;
  Error error_;
  std::string description_ = "not connected";
  std::map<int, std::unique_ptr<device::Copier>> copiers_;
  std::deque<Flight> flights_;
};

}  // namespace p2p::cuda_ipc
