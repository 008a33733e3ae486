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
#include "transport/cuda_ipc/regions.h"
#include "transport/cuda_ipc/served_copies.h"
#include "transport/cuda_ipc/told_regions.h"
#include "transport/cuda_ipc/warmup.h"
#include "transport/transport.h"

namespace p2p::cuda_ipc {

/// Copies between local memory and a peer's device memory; the peer takes no part. All of a batch goes to the
/// device whose memory is local, so that writes are pushed and reads are pulled. Where the peer's memory is
/// private to its process, the peer is asked to copy, and does the same from its side.
class IpcChannel : public Channel {
 public:
  struct Own {
    ProcessId process;
    Bytes address;
    std::shared_ptr<Warmup> warmup;
    ControlLink* control = nullptr;
    std::shared_ptr<ToldRegions> told;  // these three serve memory that one side alone reaches
    PeerAccess regions;
    ServedCopies::Import import;
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
  bool busy() const override { return !flights_.empty() || !served_.empty() || full_ != nullptr; }
  Status on_control(std::span<const std::byte> message) override;
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
    std::vector<Segment> asked;          // that the peer has to copy, because its memory is private
    bool awaits_peer = false;            // which has not said yet how that ended
    std::unique_ptr<ServedCopy> served;  // set: the batch is the peer's, and `id` means nothing
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
  void ask(Flight& flight, Operation operation);
  Status offer(const LocalMemory& region);
  void serve();
  bool serve(std::unique_ptr<ServedCopy> copy);
  void end(Flight& flight, std::vector<Completion>& completions);
  bool advance(Flight& flight);
  void release(Flight& flight);

  const Own own_;
  ChannelState state_ = ChannelState::kConnecting;
  Error error_;
  std::string description_ = "not connected";
  std::map<int, std::unique_ptr<device::Copier>> copiers_;
  std::deque<Flight> flights_;
  ServedCopies served_;
  std::unique_ptr<ServedCopy> full_;  // a batch of the peer's for which no list was free
};

}  // namespace p2p::cuda_ipc
