// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/background.h"
#include "base/error.h"
#include "base/log.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"
#include "transport/cuda_ipc/channel.h"
#include "transport/cuda_ipc/cuda_ipc.h"
#include "transport/cuda_ipc/memory/regions.h"

namespace p2p::cuda_ipc {
namespace {

// Blocks of one launch: enough to make its start and end small beside the copying, few enough that the lists
// of several launches are written while others run.
constexpr std::size_t kBlocks = 4096;
// A list this short is at its end sooner by copy engine than by a kernel that is launched for it: 1 MiB
// between two GPUs takes 10 us, by kernel 13.
constexpr std::size_t kBulkCount = 1;
constexpr std::size_t kLists = 8;
// Host memory that is pinned before it is known to be used: what takes a second at most.
constexpr std::uint64_t kPinnedAhead = std::uint64_t{1} << 30;
// As small as an allocation gets that shares no block with others: peers keep it mapped.
constexpr std::size_t kProbeBytes = std::size_t{2} << 20;

device::Copier::Limits limits_from(const Options& options) {
  return {.grid = {.ctas = options.gpu_blocks},
          .bulk_bytes = device::all_by_kernel(options.gpu_blocks),
          .bulk_count = kBulkCount,
          .blocks = kBlocks,
          .lists = kLists,
          .standby_ctas = std::min(options.gpu_blocks, options.gpu_standby_blocks)};
}

class CudaIpc : public Transport {
 public:
  explicit CudaIpc(const Options& options)
      : process_(this_process()),
        place_(socket::Place::at(options.socket_dir).value_or(socket::Place())),
        mappings_(std::make_shared<Mappings>(Mappings::Limits{})),
        warmup_(std::make_shared<Warmup>(limits_from(options), options, mappings_)),
        leases_(std::make_shared<RingLeases>(process_.value_or(ProcessId{}), mappings_)),
        server_(std::make_shared<ChunkServer>(
            cuda::export_chunk,
            [leases = leases_, warmup = warmup_](int device) {
              warmup->prepare(device);
              return leases->lease(device);
            },
            place_)),
        ring_sources_(place_) {}

  std::string_view name() const override { return "cuda_ipc"; }

  Capabilities capabilities() const override {
    // Copy engines reach their speed with large pieces only, and a kernel wants as many blocks as there are.
    return {.reach = Reach::kHost,
            .needs_exported_key = true,
            .guard = Guard::kNobody,
            .slow_import = true,
            .scheduling = Scheduling::kByCaller,
            .max_batch_bytes = std::uint64_t{1} << 30,
            .max_batch_segments = kBlocks};
  }

  Status probe() const override {
    if (!process_) return tl::unexpected(process_.error());
    return cuda::available();
  }

  bool carries(MemoryPlace /*local*/, MemoryPlace remote) const override {
    return remote.kind == MemoryKind::kCuda;
  }

  std::vector<Rail> rails(const PeerPath& /*path*/) const override { return {{"gpu", ""}}; }

  unsigned channels_per_rail(const Rail& /*rail*/) const override { return kChannels; }

  Result<std::shared_ptr<Registration>> register_memory(const RegionInfo& region) override {
    auto memory = LocalMemory::make(region, *process_, server_);
    if (!memory) return tl::unexpected(std::move(memory.error()));
    const MutexLock lock(mutex_);
    if (region.place.kind == MemoryKind::kCuda) {
      const int device = region.place.device;
      if (devices_.insert(device).second) {
        borrow_rings();
        expect(device);
      }
      regions_->add(*memory);
    } else if (region.size <= kPinnedAhead) {
      std::erase_if(unpinned_, [](const auto& each) { return each.expired(); });
      unpinned_.push_back(*memory);
      if (pins_ahead_) pin_ahead();
    }
    return *memory;
  }

  void revoke_memory(const Registration& registration) override {
    regions_->revoke(registration);
    static_cast<const LocalMemory&>(registration).withdraw();
    advertised_->withdraw(registration.info().id);
  }

  Status check_pair(const Registration& local, const RemoteKey& remote) const override {
    const auto* const there = dynamic_cast<const PrivateMemory*>(&remote);
    if (there == nullptr || there->owner_reaches(static_cast<const LocalMemory&>(local))) return {};
    const MemoryPlace here = local.info().place;
    std::string why = "host memory";
    if (here.kind == MemoryKind::kCuda) {
      const auto ring = there->ring_for(here.device);
      if (ring) return {};
      why = ring.error().message;
    }
    return fail(ErrorCode::kUnavailable,
                "the owner cannot share it: {}; nor can the memory on this side be shared ({})",
                there->reason(), why);
  }

  // What a kernel surely copies by itself.
  bool takes_repeats(const Registration& local, const RemoteKey& remote) const override {
    return warmup_->ways().bulk_bytes != 0 && local.info().place.kind == MemoryKind::kCuda &&
           dynamic_cast<const PeerMemory*>(&remote) != nullptr;
  }

  Result<std::unique_ptr<RemoteKey>> import_region(const RegionInfo& region,
                                                   std::span<const std::byte> exported) override;

  void warm_up(const RemoteKey& key) override;

  Result<std::unique_ptr<Channel>> open_channel(const ChannelSetup& setup) override;

 private:
  void expect(int device);
  std::optional<SharedMemory> probe_memory();
  std::unique_ptr<RemoteKey> import_private(const RegionInfo& region, const std::optional<RingTicket>& ring,
                                            std::string reason, bool handles);
  bool opens_handles(const std::optional<RingTicket>& of) const;
  void borrow_ring(RingSource& source, const std::set<int>& devices);
  void borrow_rings() P2P_REQUIRES(mutex_);
  void import_offered(const RegionInfo& region, Bytes exported, const OfferedRegions::Imported& done);
  void pin_ahead() P2P_REQUIRES(mutex_);

  const Result<ProcessId> process_;
  const socket::Place place_;
  const std::shared_ptr<Mappings> mappings_;
  const std::shared_ptr<Warmup> warmup_;
  const std::shared_ptr<RingLeases> leases_;
  const std::shared_ptr<ChunkServer> server_;
  const std::shared_ptr<RegistrationTable> regions_ = std::make_shared<RegistrationTable>();
  const std::shared_ptr<AdvertisedRegions> advertised_ = std::make_shared<AdvertisedRegions>();
  Mutex mutex_;
  RingSources ring_sources_;
  std::set<int> devices_ P2P_GUARDED_BY(mutex_);  // that have memory registered here
  std::vector<std::weak_ptr<const LocalMemory>> unpinned_ P2P_GUARDED_BY(mutex_);  // host memory
  bool pins_ahead_ P2P_GUARDED_BY(mutex_) = false;
  Mutex probing_;
  cuda::DeviceBuffer probe_ P2P_GUARDED_BY(probing_);
  std::optional<SharedMemory> probe_key_ P2P_GUARDED_BY(probing_);  // a driver that maps memory answers late
  Background pinning_{"p2p-pinning"};
  Background importing_{"p2p-offers"};
};

Result<std::unique_ptr<RemoteKey>> CudaIpc::import_region(const RegionInfo& region,
                                                          std::span<const std::byte> exported) {
  auto key = decode_key(exported);
  if (!key) return tl::unexpected(key.error());
  if (key->is_private) {
    return import_private(region, key->ring, std::move(key->refusal), opens_handles(key->ring));
  }
  if (!key->memory && !key->chunks) {
    return fail(ErrorCode::kUnavailable, "the owner cannot share it: {}", key->refusal);
  }
  const ProcessId& owner = key->memory ? key->memory->owner : key->chunks->owner;
  if (owner.boot != process_->boot) {
    return fail(ErrorCode::kUnavailable, "its owner runs on another machine");
  }
  const auto base = reinterpret_cast<std::uint64_t>(region.base);
  const std::uint64_t shared = key->memory ? key->memory->base : key->chunks->base;
  const std::uint64_t bytes = key->memory ? key->memory->size : key->chunks->size;
  if (base < shared || base - shared > bytes || region.size > bytes - (base - shared)) {
    return fail(ErrorCode::kProtocol, "import {} bytes at {:#x}: they lie outside the shared allocation",
                region.size, base);
  }
  const auto device = cuda::find_device(key->memory ? key->memory->device : key->chunks->device);
  const bool same_process = owner == *process_;
  if (same_process && !registered_here(region)) {
    return fail(ErrorCode::kProtocol, "import {} bytes at {:#x}: no endpoint of this process registered them",
                region.size, base);
  }
  const auto ring = key->ring;
  auto peer = std::make_unique<PeerMemory>(region, std::move(*key), device.value_or(kHiddenDevice), mappings_,
                                           same_process, place_);
  std::set<int> devices;
  {
    const MutexLock lock(mutex_);
    devices = devices_;
    // With memory of no GPU of its own the process will copy from and to host memory.
    pins_ahead_ = pins_ahead_ || devices.empty();
    if (pins_ahead_) pin_ahead();
  }
  // Mapped now for the devices in use, so that no transfer does it.
  Status status;
  bool reached = devices.empty();
  if (devices.empty()) static_cast<void>(peer->reach(peer->device_for_host()));
  for (const int local : devices) {
    const auto reach = peer->reach(local);
    reached = reached || reach.has_value();
    if (!reach) status = tl::unexpected(reach.error());
  }
  if (!reached && ring) return import_private(region, ring, std::move(status.error().message), false);
  if (!reached) return tl::unexpected(status.error());
  return peer;
}

void CudaIpc::warm_up(const RemoteKey& key) {
  const auto* const peer = dynamic_cast<const PeerMemory*>(&key);
  if (peer == nullptr) return;
  std::set<int> devices;
  {
    const MutexLock lock(mutex_);
    devices = devices_;
  }
  if (devices.empty()) warmup_->prepare(peer->device_for_host(), *peer);
  for (const int device : devices) warmup_->prepare(device, *peer);
}

// CUDA takes two processes of the same number for one, which needs no handles.
bool CudaIpc::opens_handles(const std::optional<RingTicket>& of) const {
  return !of || of->owner == *process_ || of->owner.pid != process_->pid;
}

// The ring is for memory here that cannot be shared either, its words for what the owner is asked to copy.
std::unique_ptr<RemoteKey> CudaIpc::import_private(const RegionInfo& region,
                                                   const std::optional<RingTicket>& ring, std::string reason,
                                                   bool handles) {
  std::shared_ptr<RingSource> source;
  std::set<int> devices;
  if (ring) {
    source = ring_sources_.of(*ring);
    const MutexLock lock(mutex_);
    devices = devices_;
  }
  if (!devices.empty()) borrow_ring(*source, devices);
  return std::make_unique<PrivateMemory>(region, std::move(reason), std::move(source), handles);
}

void CudaIpc::borrow_ring(RingSource& source, const std::set<int>& devices) {
  for (const int device : devices) warmup_->prepare(device);
  if (const Status fetched = source.fetch(devices); !fetched) {
    log(LogLevel::kInfo, "cuda_ipc between memories that cannot be shared: {}", fetched.error().message);
  }
}

// Peers' private memory may be known already.
void CudaIpc::borrow_rings() {
  importing_.post([this, devices = devices_] {
    for (const auto& source : ring_sources_.all()) borrow_ring(*source, devices);
  });
}

Result<std::unique_ptr<Channel>> CudaIpc::open_channel(const ChannelSetup& setup) {
  if (const Status usable = probe(); !usable) return tl::unexpected(usable.error());
  auto link = TwinLink::open(setup, place_);
  if (!link) return tl::unexpected(std::move(link.error()));
  auto address =
      encode(ChannelAddress{.process = *process_, .probe = probe_memory(), .twin = link->address()});
  return std::make_unique<IpcChannel>(IpcChannel::Own{
      .process = *process_,
      .address = std::move(address),
      .warmup = warmup_,
      .link = std::move(*link),
      .control = setup.control,
      .advertised = advertised_,
      .regions = {regions_, setup.peer_identity},
      .import =
          [this](const RegionInfo& region, Bytes exported, const OfferedRegions::Imported& done) {
            import_offered(region, std::move(exported), done);
          },
      .leases = leases_});
}

// For a copy that a peer asks for: not on the worker's thread.
void CudaIpc::import_offered(const RegionInfo& region, Bytes exported, const OfferedRegions::Imported& done) {
  auto import = [this, region, exported = std::move(exported), done] {
    done(import_region(region, exported));
  };
  if (importing_.post(std::move(import))) return;
  done(fail(ErrorCode::kCancelled, "the endpoint is being closed"));
}

void CudaIpc::pin_ahead() {
  for (auto& memory : unpinned_) {
    pinning_.post([weak = std::move(memory)] {
      if (const auto region = weak.lock()) region->pin_ahead();
    });
  }
  unpinned_.clear();
}

// What takes milliseconds when the first peer comes.
void CudaIpc::expect(int device) {
  warmup_->expect(device);
  importing_.post([this] { static_cast<void>(probe_memory()); });
}

// A little memory for peers to try, on a device that this process uses anyway.
std::optional<SharedMemory> CudaIpc::probe_memory() {
  const MutexLock lock(probing_);
  if (probe_key_) return probe_key_;
  if (probe_.data() == nullptr) {
    const std::vector<int> active = cuda::active_devices();
    if (active.empty()) return std::nullopt;
    auto buffer = cuda::DeviceBuffer::allocate(active.front(), kProbeBytes, true);
    if (!buffer) {
      log(LogLevel::kWarning, "cuda_ipc is not tried out at connect: {}", buffer.error().message);
      return std::nullopt;
    }
    probe_ = std::move(*buffer);
  }
  const auto memory = LocalMemory::make(
      {.base = probe_.data(), .size = probe_.size(), .place = {MemoryKind::kCuda, probe_.device()}},
      *process_);
  if (!memory) return std::nullopt;
  if (const auto key = decode_key((*memory)->export_key())) probe_key_ = key->memory;
  return probe_key_;
}

}  // namespace

std::unique_ptr<Transport> make(const Options& options, const std::shared_ptr<device::Service>& /*devices*/) {
  return std::make_unique<CudaIpc>(options);
}

}  // namespace p2p::cuda_ipc
