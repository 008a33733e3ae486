// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "p2p/memory.h"
#include "transport/peer_access.h"
#include "transport/tcp/staging/device_arrivals.h"
#include "transport/tcp/staging/device_departures.h"
#include "transport/tcp/stream/descriptors.h"
#include "transport/tcp/stream/receiver.h"
#include "transport/tcp/stream/sender.h"

namespace p2p::tcp {

/// What the peer asks of my memory by one stream: its writes, which are acknowledged in their order, and its
/// reads. Every range that it names is looked up, and checked, in what it may reach. Belongs to a
/// channel, on its thread.
class PeerRequests {
 public:
  PeerRequests(PeerAccess regions, Sender& sender, std::shared_ptr<device::Staging> staging,
               DeviceDepartures& departures)
      : regions_(std::move(regions)),
        sender_(sender),
        departures_(departures),
        arrivals_(std::move(staging)) {}
  PeerRequests(const PeerRequests&) = delete;
  PeerRequests& operator=(const PeerRequests&) = delete;

  /// A write begins: says where its payload goes. kProtocol for one out of order.
  Status begin_write(const FrameHeader& header, ByteView descriptors, Landing& landing);
  Status end_write(const FrameHeader& header, const Landing& landing);

  /// Answers a read.
  Status serve_read(const FrameHeader& header, ByteView descriptors);

  /// Ends writes that have reached a device, and those behind them.
  Status settle();

  /// Everything that had come was dealt with: what has not been acknowledged is to be now.
  void acknowledge();

  bool busy() const { return arrivals_.size() != 0; }

  /// Lets go of all; the staging was closed before.
  void clear() { arrivals_.clear(); }

 private:
  Status resolve(Operation operation, Landing& landing);
  bool resolved_to_device() const;
  StagedMemory stage(Landing& landing) const;
  Status write_ended(const Status& outcome, std::uint64_t bytes);

  const PeerAccess regions_;
  Sender& sender_;
  DeviceDepartures& departures_;
  DeviceArrivals arrivals_;
  RangeList ranges_;                 // of the frame that has just begun
  std::vector<MemoryPlace> places_;  // of its groups
  Landing source_;                   // scratch: what a read reads
  std::uint64_t unacknowledged_frames_ = 0;
  std::uint64_t unacknowledged_bytes_ = 0;
};

}  // namespace p2p::tcp
