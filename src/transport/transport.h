// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/role.h"
#include "p2p/memory.h"
#include "p2p/options.h"
#include "p2p/result.h"
#include "transport/batch.h"
#include "transport/channel.h"
#include "transport/guard.h"
#include "transport/message_listener.h"
#include "transport/registration.h"
#include "transport/stream_port.h"

namespace p2p {

/// How far a transport carries.
enum class Reach : std::uint8_t { kProcess, kHost, kNetwork };

/// How the engine distributes work over a transport's channels (src/engine/schedule/policy.h).
enum class Scheduling : std::uint8_t {
  /// Moving bytes takes a thread's time: transfers are cut by `Options::batch_bytes` and spread over channels
  /// and workers.
  kSpread,

  /// A device moves the bytes, and starting it takes no longer than waking a thread: transfers are cut by
  /// `max_batch_bytes` alone, started by the caller's thread and looked after by it while it waits.
  kByCaller,
};

/// What the engine must know of a transport before it uses it.
struct Capabilities {
  Reach reach = Reach::kNetwork;

  /// `import_region` needs the owner's base, size and exported key, told to those that hold the region's key:
  /// always so where the peer's engine takes no part and checks no key. They are revoked with its word.
  bool needs_exported_key = false;
  Guard guard = Guard::kOwner;

  bool named = false;        ///< by the user: a warning where GPU memory takes another one instead
  bool slow_import = false;  ///< of device memory, by milliseconds: not on the session's thread

  Scheduling scheduling = Scheduling::kSpread;
  bool encrypts = false;       ///< what leaves the host, where `ChannelSetup::encrypt` asks for it
  bool reopens = false;        ///< a channel that was lost can be opened again, also the last one
  bool closes_idle = false;    ///< and all are closed when nothing uses them, until something does
  bool others_follow = false;  ///< the first one of each rail serves before the others are opened

  /// Of kSpread: for so many another thread is woken, where the engine would wake one for less.
  std::uint64_t thread_bytes = 0;

  std::uint64_t max_batch_bytes = std::uint64_t{1} << 20;
  std::size_t max_batch_segments = 1024;
};

/// A NIC, or whatever else limits a path: the engine opens a set of channels for each.
struct Rail {
  std::string name;     ///< "eth1", "mlx5_0:1"; shown in routes
  std::string address;  ///< for network transports, numeric
};

/// The control connection's two ends, from which a transport finds the rails. Numeric addresses.
struct PeerPath {
  std::string local_address;
  std::string remote_address;
  std::uint16_t remote_port = 0;
};

/// Carries small messages (at most 64 KiB) to the channel at the other end over the session: reliable, in
/// order, slower than the channel. Thread-safe; the channel gets them in `on_control`.
class ControlLink {
 public:
  virtual ~ControlLink() = default;
  virtual void send(std::span<const std::byte> message) = 0;
};

/// What a channel is made with.
struct ChannelSetup {
  Role role = Role::kConnector;
  Rail rail;
  PeerPath path;
  Incarnation local_incarnation = 0;
  Incarnation peer_incarnation = 0;
  std::string peer_identity{};  ///< as the session has proven it; may be empty

  /// Known to both sides of the session only: a channel that accepts a stranger's connection asks for proof.
  std::array<std::byte, 32> secret{};
  bool encrypt = false;                        ///< both sides wish it
  ControlLink* control = nullptr;              ///< outlives the channel
  MessageListener* messages = nullptr;         ///< likewise; null: nobody listens
  std::shared_ptr<StreamPort> port = nullptr;  ///< where the peer may dial; null: nowhere
  std::vector<std::string> transports{};       ///< that both sides have, as far as is known when it is opened

  /// There are channels over other rails besides: called, by whoever moves this one, again and again while it
  /// is stalled as its PathUse says. Null: nobody asks.
  std::function<void()> stalls{};
};

/// One fabric in this process. Every call is thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const = 0;
  virtual Capabilities capabilities() const = 0;

  /// Success if it can be used on this machine, else the reason in one sentence.
  virtual Status probe() const = 0;

  /// True if it moves bytes between these places, given that a channel is up.
  virtual bool carries(MemoryPlace local, MemoryPlace remote) const = 0;

  /// The rails towards a peer, most preferred first; at least one.
  virtual std::vector<Rail> rails(const PeerPath& path) const = 0;

  /// Channels to open on one rail.
  virtual unsigned channels_per_rail(const Rail& rail) const = 0;

  /// How many more may be opened there while they are busy on a long path.
  virtual unsigned spare_channels(const Rail& /*rail*/) const { return 0; }

  /// Takes memory into use; the transport keeps it findable for peers until `revoke_memory`.
  virtual Result<std::shared_ptr<Registration>> register_memory(const RegionInfo& region) = 0;

  /// Peers begin no access to it after this returns; `Registration::wait_unaccessed` tells when those that
  /// had begun are over. Never waits.
  virtual void revoke_memory(const Registration& registration) = 0;

  /// Makes a peer's region usable. `exported` came from the peer: check it.
  virtual Result<std::unique_ptr<RemoteKey>> import_region(const RegionInfo& region,
                                                           std::span<const std::byte> exported) = 0;

  /// The region is in use by now: what its first uses cost may be paid here. `key` is not to be touched after
  /// the call.
  virtual void warm_up(const RemoteKey& /*key*/) {}

  /// Whether it moves bytes between these two, which it has made; the error says why not.
  virtual Status check_pair(const Registration& /*local*/, const RemoteKey& /*remote*/) const { return {}; }

  /// Whether segments between the two may repeat: a description that its channels take as it is.
  virtual bool takes_repeats(const Registration& /*local*/, const RemoteKey& /*remote*/) const {
    return false;
  }

  /// How this region of a peer's is reached, for people; empty: as all of them.
  virtual std::string describe(const RemoteKey& /*remote*/) const { return {}; }

  virtual Result<std::unique_ptr<Channel>> open_channel(const ChannelSetup& setup) = 0;
};

}  // namespace p2p
