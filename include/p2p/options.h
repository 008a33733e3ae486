// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "p2p/api.h"
#include "p2p/nccl_net_options.h"
#include "p2p/rdma_options.h"
#include "p2p/result.h"

namespace p2p {

/// Whether data that leaves this host is encrypted.
enum class Encryption : std::uint8_t {
  kOff,      ///< not unless the peer asks for it
  kOn,       ///< the streams of `tcp`, with peers that can
  kRequire,  ///< with all peers: others are refused, and transports that cannot encrypt are not used
};

/// All that can be set, with the defaults that apply. `from_environment` maps UCCL_P2P_* onto it;
/// docs/options.md lists every variable.
struct P2P_API Options {
  /// Numeric address to listen on and to announce, as HostPort reads it; empty: 0.0.0.0 with a key, else the
  /// address that other hosts most likely reach (docs/options.md).
  std::string listen_address;

  /// If `listen_address` names no address, the address of one of these interfaces is announced: beginnings of
  /// names, comma-separated; with `=` in front whole names, with `^` all but these. Empty: any.
  std::string announce_interfaces;

  /// Numeric address: interfaces in its network are preferred for the address to announce. Empty: no
  /// preference.
  std::string announce_near;

  /// TCP port of the listener, at which the streams of `tcp` arrive, too; 0 leaves the choice to the next
  /// two.
  std::uint16_t port = 0;

  /// Where `port` is 0: the first of these that is free. 0 both: the system chooses.
  std::uint16_t first_port = 0;
  std::uint16_t last_port = 0;

  /// Number of this process among those of its job on this host, as launchers tell it; what "+rank" adds to a
  /// port.
  std::optional<std::uint16_t> local_rank;

  /// What peers are to dial in place of the listener's own address and port: "host", "host:port" or
  /// "[address]:port"; of a NAT, say. Empty: its own.
  std::string announce;

  /// Transports in order of preference; empty: all that can be used, best first.
  std::vector<std::string> transports;

  /// With `transports` set: refuse a transfer rather than take a route that is not listed.
  bool require_transport = true;

  /// A transport that must be used wherever it can move bytes between the two kinds of memory: a transfer for
  /// which only another one works is refused. Empty: none.
  std::string required;

  /// Leave out transports that reach no further than this host.
  bool network_only = false;

  /// Folder in which processes of this host meet across namespaces, as pods that mount it: an absolute path
  /// of at most 60 bytes (docs/pods.md). Empty: they meet within one network namespace.
  std::string socket_dir;

  /// Engine threads; 0: one a core up to 8, then one for every two up to 16.
  unsigned workers = 0;

  /// Keep engine threads on the CPUs next to the GPUs whose memory is registered, where the system says
  /// which.
  bool place_threads = true;

  /// TCP streams a connection and interface; 0: chosen from cores and link speed. Of the two sides' numbers
  /// the smaller one counts.
  unsigned streams = 0;

  /// Interfaces for TCP data, by name or address; empty: the one that the route to the peer takes.
  std::vector<std::string> interfaces;

  /// A peer whose machine, or the path to it, is silent for this long is gone, and its transfers fail.
  std::chrono::milliseconds keepalive{3000};

  /// A peer whose machine answers but whose process does not (it is stopped, or gets no CPU time) is slow:
  /// routes and the log say so, and after this long it is gone.
  std::chrono::milliseconds hung{30000};

  /// A connection's `tcp` streams are closed when nothing has used them for this long, and opened again by
  /// the next use; 0: not by this side. Of the two sides' times the shorter one counts.
  std::chrono::milliseconds idle{60000};

  /// Bound on connect, handshake included, where the call names none.
  std::chrono::milliseconds connect_timeout{10000};

  /// How long engine threads and waits poll before they sleep; 0: they never poll.
  std::chrono::microseconds spin{50};

  /// File with pre-shared keys: lines `name:secret`, or one secret of any bytes (docs/security.md). Empty: no
  /// authentication, unless certificates are named.
  std::string key_file;

  /// Certificates in place of keys: PEM files with the authority that signs for peers, this side's
  /// certificate, and its private key. All of them or none.
  std::string tls_ca;
  std::string tls_certificate;
  std::string tls_key;

  /// Encryption of the streams that carry data; needs a key file or certificates. The control connection is
  /// always encrypted if there are any.
  Encryption tls = Encryption::kOff;

  /// Names of keys, or common names of certificates, whose holders may connect; empty: all.
  std::vector<std::string> allow;

  /// The most connections that have not proven who they are, in all and from one address. Beyond that the
  /// oldest are closed.
  unsigned max_strangers = 512;
  unsigned max_strangers_of_address = 256;
  unsigned spare_descriptors = 64;          ///< of the process, left to the application; at most half
  unsigned max_unaccepted = 4096;           ///< connections that wait for `accept`; others are refused
  unsigned max_posted_receives = 1U << 20;  ///< of each peer, that no message has met

  /// Bytes that all peers together may make the endpoint keep: notifications and short messages that nobody
  /// has taken, posted receives, regions that these name. The first 16 KiB of each kind are free for each
  /// connection. A peer that needs more ends its connection, or message (regions), and is told why.
  std::size_t max_peer_bytes = std::size_t{1} << 30;
  unsigned max_channels = 64;  ///< of one transport for each connection, at most 64

  /// Bytes of one batch, the unit of scheduling.
  std::size_t batch_bytes = std::size_t{1} << 20;

  /// Bytes that a connection keeps of short messages whose receives are not posted yet. Messages of up to a
  /// quarter of it, and up to 16 KiB, leave without waiting for their receive; 0: none does. At most 1 GiB.
  std::size_t eager_bytes = std::size_t{1} << 20;

  /// Notifications, and bytes of them, that a connection keeps until the application takes them; further ones
  /// wait at the peer. One has half of these bytes at most.
  std::uint32_t notifications = 65536;
  std::size_t notification_bytes = std::size_t{256} << 20;

  /// MSG_ZEROCOPY for TCP sends of at least this many bytes; dropped where the kernel copies anyway. 0:
  /// never.
  std::size_t zerocopy_bytes = std::size_t{256} << 10;

  /// Thread blocks (of 512 threads) that a copy kernel takes at most of a GPU; 0: no kernels, copy engines
  /// only, which leaves all multiprocessors to the program but is slow for small blocks.
  unsigned gpu_blocks = 64;

  /// Thread blocks of the kernel that waits for short single copies while they follow one another, so that
  /// none costs a launch: between GPUs within 0.2 ms, through pinned memory within 0.5 ms. 0: none, each copy
  /// is started by itself.
  unsigned gpu_standby_blocks = 16;

  /// Pieces of at least this many bytes go by copy engine between GPUs, smaller ones by kernel. What was best
  /// between two H200 and two H100 over NVLink (docs/decisions/fixed-copy-sizes.md).
  std::size_t gpu_bulk_bytes = std::size_t{32} << 20;

  /// Single copies of at most this many bytes go by the kernel that stands by. From the same measurements.
  std::size_t gpu_standby_bytes = std::size_t{4} << 20;

  /// Pinned host memory through which `tcp` and `cma` carry GPU memory, for all streams of an endpoint: made
  /// in the background once GPU memory is registered and a stream is there, in slots of 1 MiB, 8 a stream;
  /// for channels of `cma` once a peer's host memory is imported, too. When it is used up, each further
  /// stream or channel gets only the few slots that it cannot work without.
  std::size_t gpu_staging_bytes = std::size_t{128} << 20;

  /// "address:port" or "[address]:port" at which metrics are served by HTTP, for endpoints of all the user's
  /// processes on this host that name it; port 0: the system chooses and logs it. Empty: none are.
  std::string metrics;
  bool metrics_public = false;  ///< also at an address that other hosts reach

  /// File for a trace of all transfers of the process; `%p` stands for the process id. Empty: none.
  std::string trace;
  std::size_t trace_bytes = std::size_t{1} << 30;  ///< bytes; the trace ends there

  NcclNetOptions nccl_net;
  RdmaOptions rdma;

  /// Defaults overridden by the environment; an unreadable value is an error that names the variable.
  /// UCCL_P2P_LOG_LEVEL takes effect at once, for the process.
  static Result<Options> from_environment();
};

/// One row of the table behind `Options::from_environment` and docs/options.md.
struct OptionRow {
  const char* variable;       ///< UCCL_P2P_..., or another program's
  const char* meaning;        ///< one sentence
  std::string default_value;  ///< as it would be written in the environment
};

/// Every variable the library reads, in the order of docs/options.md.
P2P_API std::vector<OptionRow> option_rows();

}  // namespace p2p
