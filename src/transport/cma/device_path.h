// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "device/staging.h"
#include "transport/batch.h"

namespace p2p::cma {

/// Batches with device memory of this process. The system copies host memory only, so their bytes go through
/// pinned slots; one is filled or emptied by a device while another is copied. Belongs to a channel, on its
/// thread; what ended goes to the vector given at construction.
class DevicePath {
 public:
  /// Copies between memory here that the processor reaches and the peer's.
  using Copy = std::function<Status(const Batch& batch)>;

  DevicePath(std::shared_ptr<device::Staging> staging, Copy copy, std::vector<Completion>& completions)
      : copy_(std::move(copy)), completions_(completions), staging_(std::move(staging)) {}
  ~DevicePath() {
    if (staging_) staging_->close();
  }
  DevicePath(const DevicePath&) = delete;
  DevicePath& operator=(const DevicePath&) = delete;

  /// A direction: one is with the processor and the others with the device. On a machine with H200 GPUs eight
  /// channels reached 31 to 36 GB/s with two of them, 41 to 48 with three or four; PCIe gives 55.
  static constexpr std::size_t kSlots = 4;

  /// What a channel has of the endpoint's staging. By the kernel that stands by goes what is short enough
  /// that the next one is brought while this one is copied.
  static constexpr device::Staging::Share kShare{.slots = {kSlots, 0, kSlots},
                                                 .standby_bytes = std::uint64_t{256} << 10};

  /// Takes a batch of at most a slot; false: full.
  bool post(const Batch& batch);

  /// True if a batch ended.
  bool progress();

  bool busy() const { return !flights_.empty(); }

  /// A write whose bytes did not leave yet is not made.
  void abandon(BatchId id);

  /// Waits for copies under way and ends all with `why`.
  void fail(const Error& why);

 private:
  struct Flight {
    Batch batch;
    device::Staging::Slot* slot = nullptr;
    bool abandoned = false;
  };

  Status begin(const Batch& batch, device::Staging::Slot& slot);
  Status finish(const Flight& flight);
  Batch through(const Batch& batch, const device::Staging::Slot& slot);

  const Copy copy_;
  std::vector<Completion>& completions_;
  std::shared_ptr<device::Staging> staging_;  // until `fail`
  std::vector<Flight> flights_;
  std::vector<Segment> segments_;            // of the batch that is copied just now
  std::vector<device::StagedPiece> pieces_;  // likewise
};

}  // namespace p2p::cma
