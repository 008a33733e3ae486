// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "device/job.h"
#include "transport/cuda_ipc/copies/warmup.h"
#include "transport/transport.h"

namespace p2p::cuda_ipc {

/// What a batch comes to.
struct Plan {
  device::Job copies;  ///< by local devices
  Status status;
  std::vector<Segment> asked;   ///< that the peer has to copy, because its memory is private
  std::vector<Segment> closed;  ///< of memory that is private on both sides
};

/// Makes the plan of one batch.
class Planner {
 public:
  Planner(device::OwnCopiers& copiers, const Warmup& warmup, Plan& plan)
      : copiers_(copiers), warmup_(warmup), plan_(plan) {}

  /// False: no list is free now, and the plan is not whole.
  bool add(const Batch& batch);

 private:
  /// What is the same for a run of segments.
  struct Path {
    const Registration* registration = nullptr;
    const RemoteKey* key = nullptr;
    device::Job::Part part;
    std::byte* peer = nullptr;  // where the peer's region begins here
    device::Ways ways;
    std::span<std::byte* const> seams;  // of the local memory
  };

  std::byte* enter(const Segment& piece);
  std::vector<Segment>* apart_of(const Segment& piece);
  Result<bool> find_path(const Segment& piece);
  void add_run(const Segment& run, bool write);
  void add_parts(const Segment& piece, std::byte* peer, bool write);
  Batch::Taken add_alike(std::span<const Segment> whole, bool write);

  device::OwnCopiers& copiers_;
  const Warmup& warmup_;
  Plan& plan_;
  Path path_;
  std::pair<const Registration*, const RemoteKey*> seen_;
  std::vector<Segment>* apart_ = nullptr;  // where what is not copied here goes
  bool full_ = false;
};

}  // namespace p2p::cuda_ipc
