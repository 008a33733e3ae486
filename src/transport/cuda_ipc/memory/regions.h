// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "device/lifetime.h"
#include "drivers/cuda/place.h"
#include "drivers/cuda/window.h"
#include "transport/cuda_ipc/memory/chunk_server.h"
#include "transport/cuda_ipc/memory/key.h"
#include "transport/cuda_ipc/memory/mappings.h"
#include "transport/cuda_ipc/memory/peer_ring.h"
#include "transport/cuda_ipc/memory/pins.h"
#include "transport/registration.h"

namespace p2p::cuda_ipc {

/// My memory. Device memory remembers its allocation, so that an address which was freed and given out again
/// is refused.
class LocalMemory : public device::WithLifetime<Registration>,
                    public std::enable_shared_from_this<LocalMemory> {
 public:
  /// Device memory has to lie in one allocation, or to be mapped side by side.
  static Result<std::shared_ptr<LocalMemory>> make(const RegionInfo& region, const ProcessId& process,
                                                   std::weak_ptr<ChunkServer> server = {});

  LocalMemory(const RegionInfo& region, const ProcessId& process, std::weak_ptr<ChunkServer> server)
      : WithLifetime(region), process_(process), server_(std::move(server)) {}

  std::vector<std::byte> export_key() const override;

  /// Where its allocation begins and that one's id, as long as it is there; the handle is left out. None of
  /// host memory.
  std::optional<AllocationId> alive() const;

  /// What peers are given. kUnavailable where nobody but this process can reach it.
  Result<ExportedKey> share() const;

  /// Ends what `share` began: nobody fetches chunks of it any more.
  void withdraw() const;

  /// True if this is device memory that some other process can be given. Told from what it is.
  bool shareable() const;

  /// True if kernels may use it in place. Host memory is pinned at the first call, which takes time in
  /// proportion to its size.
  bool ready_for_kernels() const;

  /// Where copies by copy engine have to be cut, in order. Known after the first `ready_for_kernels`.
  const std::vector<std::byte*>& seams() const;

  /// Pins host memory now, unless the region is taken back meanwhile.
  void pin_ahead() const;

 private:
  Result<ChunkedMemory> share_chunks() const;
  Result<Ticket> offer_chunks() const;
  std::optional<RingTicket> offer_ring() const;

  const ProcessId process_;
  const std::weak_ptr<ChunkServer> server_;  // whose thread may be the last to let go of this
  mutable Mutex mutex_;
  mutable std::optional<Ticket> offer_ P2P_GUARDED_BY(mutex_);  // once a peer has asked
  mutable std::once_flag pin_once_;
  mutable std::optional<PinnedRange> pinned_;
};

/// True if this very process registered the region, with this key. A peer that says so could mean to have
/// bytes written to memory of this process that it has no right to.
bool registered_here(const RegionInfo& region);

/// A peer's device memory that only the peer can reach: it is asked to copy.
class PrivateMemory : public RemoteKey {
 public:
  /// `ring`: where memory is lent for copies between this and other private memory; may be null. Where CUDA
  /// refuses handles between the two processes, `handles` is false.
  PrivateMemory(const RegionInfo& region, std::string reason, std::shared_ptr<RingSource> ring, bool handles)
      : RemoteKey(region), reason_(std::move(reason)), ring_(std::move(ring)), handles_(handles) {}

  const std::string& reason() const { return reason_; }  ///< why it is private

  /// The peer can make `local` its own, and copy.
  bool owner_reaches(const LocalMemory& local) const {
    return local.shareable() && (handles_ || local.lifetime().allocation().mapped);
  }

  /// A ring for copies of `device`; kUnavailable, saying why, if there is none.
  Result<std::shared_ptr<PeerRing>> ring_for(int device) const {
    if (ring_) return ring_->ring_for(device);
    return fail(ErrorCode::kUnavailable, "its owner lends no memory for that");
  }

 private:
  const std::string reason_;
  const std::shared_ptr<RingSource> ring_;
  const bool handles_;
};

/// A GPU of this host that this process does not see (CUDA_VISIBLE_DEVICES). Its memory can be mapped all the
/// same.
inline constexpr int kHiddenDevice = -1;

/// A peer's device memory.
class PeerMemory : public RemoteKey {
 public:
  /// `key` says how it is shared; `device` is the ordinal here of the device that it is on, or kHiddenDevice.
  PeerMemory(const RegionInfo& region, ExportedKey key, int device, std::shared_ptr<Mappings> mappings,
             bool same_process, socket::Place place = {})
      : RemoteKey(region),
        key_(std::move(key)),
        device_(device),
        mappings_(std::move(mappings)),
        same_process_(same_process),
        place_(std::move(place)) {}
  ~PeerMemory() override { PeerMemory::retire(); }

  /// Where the region begins for kernels and copies of `device`. The first call for a device maps the memory.
  /// kNotFound once retired.
  Result<std::byte*> reach(int device) const;

  /// Keeps what `reach` has mapped for `device`, for copies that nobody waits for. Null where it need not be
  /// kept: the driver closes an allocation once nothing copies there.
  std::shared_ptr<const void> keep(int device) const;

  void retire() const override;

  const ProcessId& owner() const { return key_.memory ? key_.memory->owner : key_.chunks->owner; }
  bool same_process() const { return same_process_; }

  int device() const { return device_; }

  /// The device that moves bytes between host memory and this: its own if this process uses it anyway or uses
  /// none, else one that is in use and reaches it. Settled by the first call.
  int device_for_host() const;

 private:
  struct Reach {
    std::byte* region = nullptr;
    std::shared_ptr<const cuda::IpcMapping> mapping;
    std::shared_ptr<const cuda::Window> window;
  };

  Result<Reach> map(int device) const;
  Result<Reach> map_allocation(int device) const;
  Result<Reach> map_chunks(int device) const;
  Result<Reach> map_own(int device) const;
  void let_go(Reach reach) const;

  const ExportedKey key_;
  const int device_;
  const std::shared_ptr<Mappings> mappings_;
  const bool same_process_;
  const socket::Place place_;  // of its owner's sockets
  mutable std::atomic<int> host_device_{-1};
  mutable Mutex fetching_;  // held while chunks are fetched and mapped
  mutable std::weak_ptr<const cuda::Window> window_ P2P_GUARDED_BY(fetching_);
  mutable Mutex mutex_;  // never held while something is mapped
  mutable std::map<int, Reach> reaches_ P2P_GUARDED_BY(mutex_);
  mutable bool retired_ P2P_GUARDED_BY(mutex_) = false;
};

}  // namespace p2p::cuda_ipc
