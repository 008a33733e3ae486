// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "api/engine_variables.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/option_text.h"
#include "p2p/host_port.h"
#include "p2p/log.h"
#include "transport/registry.h"

namespace p2p {
namespace {

using namespace option_text;
using Text = std::string_view;

Status read_transports(std::string_view text, Options& options) {
  if (text == "auto") {
    options.transports.clear();
    return {};
  }
  std::vector<std::string> names;
  if (auto status = read_list(text, names); !status) return status;
  for (std::string& name : names) {
    if (name == "auto") return fail(ErrorCode::kInvalidArgument, "\"auto\" stands alone, not in a list");
    auto transport = builtin_transports().name_of(name);
    if (!transport) return tl::unexpected(transport.error());
    name = std::move(*transport);
  }
  options.transports = std::move(names);
  return {};
}

Status read_log_level(std::string_view text, Options& /*options*/) {
  constexpr std::pair<std::string_view, LogLevel> kLevels[] = {
      {"trace", LogLevel::kTrace},     {"debug", LogLevel::kDebug}, {"info", LogLevel::kInfo},
      {"warning", LogLevel::kWarning}, {"error", LogLevel::kError}, {"off", LogLevel::kOff},
      {"warn", LogLevel::kWarning},    {"fatal", LogLevel::kOff},   {"0", LogLevel::kInfo},
      {"1", LogLevel::kWarning},       {"2", LogLevel::kError},     {"3", LogLevel::kOff}};
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const auto& [name, level] : kLevels) {
    if (lower == name) return set_log_level(level), Status{};
  }
  return fail(ErrorCode::kInvalidArgument, "none of trace, debug, info, warning, error, off");
}

constexpr Bounds kDay{1, 86'400'000};  // in milliseconds
constexpr Bounds kSome{1, 1'000'000};
constexpr Bounds kMany{1, 1'000'000'000};
constexpr Bounds kBatch{4096, std::uint64_t{1} << 30};

constexpr Bounds kPort{1, 65535};

// "N", "FIRST-LAST" or "N+rank".
Status read_port(Text text, Options& options) {
  std::uint16_t port = 0;
  std::uint16_t last = 0;
  Status status;
  const std::size_t dash = text.find('-');
  if (text.ends_with("+rank")) {
    if (!options.local_rank) {
      return fail(
          ErrorCode::kInvalidArgument,
          "none of LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_RANK, MPI_LOCALRANKID and SLURM_LOCALID says the rank");
    }
    status = read_number(text.substr(0, text.size() - 5), {1, kPort.most - *options.local_rank}, port);
    port += *options.local_rank;
  } else if (dash == Text::npos) {
    status = read_number(text, {0, kPort.most}, port);
  } else {
    status = read_number(text.substr(0, dash), kPort, port);
    if (status) status = read_number(text.substr(dash + 1), {port, kPort.most}, last);
  }
  if (!status) return status;
  options.port = last == 0 ? port : 0;
  options.first_port = last == 0 ? 0 : port;
  options.last_port = last;
  return {};
}

std::string show_port(const Options& options) {
  return options.port == 0 && options.first_port != 0
             ? fmt::format("{}-{}", options.first_port, options.last_port)
             : std::to_string(options.port);
}

constexpr std::array<std::string_view, 3> kEncryptions{"off", "on", "require"};

Status read_encryption(Text text, Options& options) {
  if (text == "integrity") {
    return fail(
        ErrorCode::kInvalidArgument,
        "integrity alone needs a cipher suite of TLS that OpenSSL has since 3.4 and this library does not "
        "use: take \"on\"");
  }
  const auto found = std::ranges::find(kEncryptions, text);
  if (found == kEncryptions.end()) return fail(ErrorCode::kInvalidArgument, "none of off, on, require");
  options.tls = static_cast<Encryption>(found - kEncryptions.begin());
  return {};
}

// What is no flag is a name; whether there is such a transport is found out where they are loaded.
Status read_require(Text text, Options& options) {
  if (read_flag(text, options.require_transport)) return {};
  auto name = builtin_transports().name_of(text);
  if (!name) return tl::unexpected(std::move(name.error()));
  options.required = std::move(*name);
  return {};
}

constexpr OptionVariable kVariables[] = {
    {"UCCL_P2P_LISTEN_ADDRESS",
     "Numeric address to listen on and to announce to peers, as 10.0.0.7, fd00::7, fe80::7%eth0, or one "
     "of them with the port: [fd00::7]:4000. 0.0.0.0 or ::, all of a family: the address that is announced "
     "is of that family, chosen as below. Empty: all addresses if a key file or a certificate is set, "
     "else one, which is the one announced: of an interface `ib*`, else in the network of NCCL_COMM_ID, "
     "else of the default route, else any but `docker*` and loopback, else `docker*`, else loopback.",
     [](Text text, Options& o) { return o.listen_address = text, Status{}; },
     [](const Options& o) { return o.listen_address; }},
    {"UCCL_P2P_ANNOUNCE",
     "What peers are given to dial in place of the listener's own address and port: `host`, `host:port` or "
     "`[address]:port`; the outer address of a NAT, or a name. Empty: its own.",
     [](Text text, Options& o) -> Status {
       o.announce = text;
       if (text.empty()) return {};
       const auto place = HostPort::parse(text);
       if (place && place->port == 0) return fail(ErrorCode::kInvalidArgument, "port 0 is none to dial");
       return place.map([](const auto&) {});
     },
     [](const Options& o) { return o.announce; }},
    {"UCCL_P2P_PORT",
     "TCP port of the listener, at which the streams of `tcp` arrive, too. `18500-18599`: the first of these "
     "that is "
     "free. `18500+rank`: that much above it by which the launcher numbers the processes of a host "
     "(LOCAL_RANK, or "
     "its like below). 0: the system chooses.",
     read_port, show_port},
    {"UCCL_P2P_TRANSPORT",
     "Transports that may be used, in order of preference, comma-separated. `auto`: all that work here, best "
     "first. `ib` stands for `rdma`, `nccl` for `tcp`, `tcpx` for `nccl_net`.",
     read_transports,
     [](const Options& o) { return o.transports.empty() ? "auto" : show_list(o.transports); }},
    {"UCCL_P2P_REQUIRE",
     "With UCCL_P2P_TRANSPORT set, 1 fails a transfer for which no listed transport works; 0 takes another "
     "and says so. The name of a transport, such as `cuda_ipc`, refuses transfers between memory that it "
     "serves for which another one would have to be taken.",
     read_require,
     [](const Options& o) { return o.required.empty() ? show_flag(o.require_transport) : o.required; }},
    {"UCCL_P2P_WORKERS", "Engine threads. 0: one for each core up to 8, then one for every two up to 16.",
     [](Text text, Options& o) { return read_number(text, {0, 256}, o.workers); },
     [](const Options& o) { return std::to_string(o.workers); }},
    {"UCCL_P2P_PLACE_THREADS",
     "1: engine threads keep to the CPUs next to the GPUs whose memory is registered, as far as the process "
     "may use them. 0: they run where the system puts them.",
     [](Text text, Options& o) { return read_flag(text, o.place_threads); },
     [](const Options& o) { return show_flag(o.place_threads); }},
    {"UCCL_P2P_STREAMS",
     "TCP streams for each connection and interface. 0: chosen from cores and link speed, and up to 24 while "
     "there is much to do and each has a small share of the path. The smaller number of the two sides "
     "counts.",
     [](Text text, Options& o) { return read_number(text, {0, 256}, o.streams); },
     [](const Options& o) { return std::to_string(o.streams); }},
    {"UCCL_P2P_INTERFACES",
     "Interfaces for TCP data, by name or address, comma-separated. Empty: the one that the route to the "
     "peer takes.",
     [](Text text, Options& o) { return read_list(text, o.interfaces); },
     [](const Options& o) { return show_list(o.interfaces); }},
    {"UCCL_P2P_KEEPALIVE_MS",
     "A peer whose machine, or the path to it, is silent for this many milliseconds is gone, and its "
     "transfers fail.",
     [](Text text, Options& o) { return read_number(text, kDay, o.keepalive); },
     [](const Options& o) { return std::to_string(o.keepalive.count()); }},
    {"UCCL_P2P_HUNG_MS",
     "A peer that does not answer although its machine does (stopped, or without a processor) is slow; after "
     "this many milliseconds it is gone.",
     [](Text text, Options& o) { return read_number(text, kDay, o.hung); },
     [](const Options& o) { return std::to_string(o.hung.count()); }},
    {"UCCL_P2P_IDLE_MS",
     "Streams of TCP that nothing has used for this many milliseconds are closed; the next use opens them "
     "again. Of the two sides' times the shorter one counts. 0: this side closes none.",
     [](Text text, Options& o) { return read_number(text, {0, kDay.most}, o.idle); },
     [](const Options& o) { return std::to_string(o.idle.count()); }},
    {"UCCL_P2P_CONNECT_TIMEOUT_MS",
     "Milliseconds for connecting, the handshake included, where the call names no limit.",
     [](Text text, Options& o) { return read_number(text, kDay, o.connect_timeout); },
     [](const Options& o) { return std::to_string(o.connect_timeout.count()); }},
    {"UCCL_P2P_SPIN_US",
     "Microseconds for which engine threads and waits poll before they sleep. 0: they never poll.",
     [](Text text, Options& o) { return read_number(text, {0, 1'000'000}, o.spin); },
     [](const Options& o) { return std::to_string(o.spin.count()); }},
    {"UCCL_P2P_KEY_FILE",
     "File with the pre-shared keys of which both sides must have one: lines `name:secret`, or a single "
     "secret. Whoever dials shows the first. Empty: no authentication, unless certificates are set.",
     [](Text text, Options& o) { return o.key_file = text, Status{}; },
     [](const Options& o) { return o.key_file; }},
    {"UCCL_P2P_TLS_CA",
     "With the next two in place of a key file: certificates (PEM) of the authority that vouches for peers.",
     [](Text text, Options& o) { return o.tls_ca = text, Status{}; },
     [](const Options& o) { return o.tls_ca; }},
    {"UCCL_P2P_TLS_CERTIFICATE",
     "This side's certificate (PEM), followed by those between it and the authority's.",
     [](Text text, Options& o) { return o.tls_certificate = text, Status{}; },
     [](const Options& o) { return o.tls_certificate; }},
    {"UCCL_P2P_TLS_KEY", "The private key (PEM) of UCCL_P2P_TLS_CERTIFICATE.",
     [](Text text, Options& o) { return o.tls_key = text, Status{}; },
     [](const Options& o) { return o.tls_key; }},
    {"UCCL_P2P_TLS",
     "Encryption of the data of `tcp` by TLS 1.3, which asks for keys or certificates. `off`: where the peer "
     "wishes it. `on`: with peers that know how. `require`: others are refused, and `rdma` and `nccl_net`, "
     "which cannot encrypt, are not used.",
     read_encryption,
     [](const Options& o) { return std::string(kEncryptions[static_cast<std::size_t>(o.tls)]); }},
    {"UCCL_P2P_ALLOW",
     "Names of keys, or common names of certificates, whose holders may connect, comma-separated. Empty: "
     "all.",
     [](Text text, Options& o) { return read_list(text, o.allow); },
     [](const Options& o) { return show_list(o.allow); }},
    {"UCCL_P2P_MAX_STRANGERS",
     "Connections that have not proven themselves yet. Beyond that the oldest are closed.",
     [](Text text, Options& o) { return read_number(text, kSome, o.max_strangers); },
     [](const Options& o) { return std::to_string(o.max_strangers); }},
    {"UCCL_P2P_MAX_STRANGERS_OF_ADDRESS", "The same, of one address.",
     [](Text text, Options& o) { return read_number(text, kSome, o.max_strangers_of_address); },
     [](const Options& o) { return std::to_string(o.max_strangers_of_address); }},
    {"UCCL_P2P_SPARE_DESCRIPTORS",
     "File descriptors of the process's limit that are left to the application: no connection is accepted "
     "with "
     "the last ones. At most half of the limit.",
     [](Text text, Options& o) { return read_number(text, {0, kSome.most}, o.spare_descriptors); },
     [](const Options& o) { return std::to_string(o.spare_descriptors); }},
    {"UCCL_P2P_MAX_UNACCEPTED",
     "Connections of peers that the application has not accepted yet. Further ones are refused.",
     [](Text text, Options& o) { return read_number(text, kSome, o.max_unaccepted); },
     [](const Options& o) { return std::to_string(o.max_unaccepted); }},
    {"UCCL_P2P_MAX_POSTED_RECEIVES",
     "Receives that a peer has posted and that no message has met yet, for each connection; those "
     "withdrawn do not count. A peer that posts more breaks the protocol: it is told, and the connection "
     "ends.",
     [](Text text, Options& o) { return read_number(text, kMany, o.max_posted_receives); },
     [](const Options& o) { return std::to_string(o.max_posted_receives); }},
    {"UCCL_P2P_MAX_PEER_BYTES",
     "Bytes that all peers together may make the endpoint keep: notifications and short messages that nobody "
     "has taken, posted receives, and regions that these name; 16K of each are free for each connection. A "
     "peer "
     "that needs more is told, and its connection ends; where it names too many regions, the message fails.",
     [](Text text, Options& o) { return read_size(text, {0, std::uint64_t{1} << 50}, o.max_peer_bytes); },
     [](const Options& o) { return show_size(o.max_peer_bytes); }},
    {"UCCL_P2P_MAX_CHANNELS", "Channels of one transport for each connection, at most 64.",
     [](Text text, Options& o) { return read_number(text, {1, 64}, o.max_channels); },
     [](const Options& o) { return std::to_string(o.max_channels); }},
    {"UCCL_P2P_BATCH_BYTES", "Bytes of one batch, the unit of scheduling. K, M and G are powers of 1024.",
     [](Text text, Options& o) { return read_size(text, kBatch, o.batch_bytes); },
     [](const Options& o) { return show_size(o.batch_bytes); }},
    {"UCCL_P2P_EAGER_BYTES",
     "Most bytes that a connection keeps of short messages whose receives are not posted yet. Messages of up "
     "to "
     "a quarter of it, and up to 16K, are sent without waiting for the receive. 0: none are.",
     [](Text text, Options& o) { return read_size(text, {0, std::uint64_t{1} << 30}, o.eager_bytes); },
     [](const Options& o) { return show_size(o.eager_bytes); }},
    {"UCCL_P2P_NOTIFICATIONS",
     "Notifications that a connection keeps until the application takes them; further ones wait at the peer.",
     [](Text text, Options& o) { return read_number(text, {1, 1U << 30}, o.notifications); },
     [](const Options& o) { return std::to_string(o.notifications); }},
    {"UCCL_P2P_NOTIFICATION_BYTES", "The same in bytes. A notification of more than half of them is refused.",
     [](Text text, Options& o) {
       return read_size(text, {4096, std::uint64_t{8} << 30}, o.notification_bytes);
     },
     [](const Options& o) { return show_size(o.notification_bytes); }},
    {"UCCL_P2P_ZEROCOPY_BYTES",
     "TCP sends of at least this many bytes use MSG_ZEROCOPY, unless the kernel turns out to copy anyway. 0: "
     "never.",
     [](Text text, Options& o) { return read_size(text, {0, std::uint64_t{1} << 40}, o.zerocopy_bytes); },
     [](const Options& o) { return show_size(o.zerocopy_bytes); }},
    {"UCCL_P2P_GPU_BLOCKS",
     "Thread blocks of 512 threads that a copy kernel takes at most of a GPU. 0: no kernels, copy engines "
     "only.",
     [](Text text, Options& o) { return read_number(text, {0, 1024}, o.gpu_blocks); },
     [](const Options& o) { return std::to_string(o.gpu_blocks); }},
    {"UCCL_P2P_GPU_STANDBY_BLOCKS",
     "Thread blocks of the kernel that waits for short single copies while they follow one another: between "
     "GPUs of one host within 0.2 ms, through pinned memory within 0.5 ms. 0: none, each copy is started by "
     "itself.",
     [](Text text, Options& o) { return read_number(text, {0, 64}, o.gpu_standby_blocks); },
     [](const Options& o) { return std::to_string(o.gpu_standby_blocks); }},
    {"UCCL_P2P_GPU_BULK_BYTES",
     "Pieces of at least this many bytes go by copy engine between GPUs of one host, smaller ones by kernel.",
     [](Text text, Options& o) { return read_size(text, {1, std::uint64_t{1} << 40}, o.gpu_bulk_bytes); },
     [](const Options& o) { return show_size(o.gpu_bulk_bytes); }},
    {"UCCL_P2P_GPU_STANDBY_BYTES",
     "Single copies of at most this many bytes, 16M at most, go by the kernel of "
     "UCCL_P2P_GPU_STANDBY_BLOCKS.",
     [](Text text, Options& o) { return read_size(text, {1, std::uint64_t{1} << 40}, o.gpu_standby_bytes); },
     [](const Options& o) { return show_size(o.gpu_standby_bytes); }},
    {"UCCL_P2P_GPU_STAGING_BYTES",
     "Pinned host memory through which `tcp` and `cma` carry GPU memory, for all streams of an endpoint. "
     "Made in the background once GPU memory is registered and a stream is there, 8 MiB a stream; 8 MiB for "
     "a channel of `cma` once host memory of a peer on this host is imported, too. Where it does not reach, "
     "each stream or channel gets few slots of 1 MiB that it cannot do without.",
     [](Text text, Options& o) { return read_size(text, {0, std::uint64_t{1} << 40}, o.gpu_staging_bytes); },
     [](const Options& o) { return show_size(o.gpu_staging_bytes); }},
    {"UCCL_P2P_DISABLE_IPC",
     "1: only transports that reach other hosts are used, also between processes of one host.",
     [](Text text, Options& o) { return read_flag(text, o.network_only); },
     [](const Options& o) { return show_flag(o.network_only); }},
    {"UCCL_P2P_SOCKET_DIR",
     "Folder that pods of one host mount, by which processes in different namespaces pass memory to each "
     "other, and in which `connect_local` finds them. An absolute path of at most 60 bytes, the same folder "
     "for all processes of the host that are to meet. Empty: processes meet within one network namespace.",
     [](Text text, Options& o) { return o.socket_dir = text, Status{}; },
     [](const Options& o) { return o.socket_dir; }},
    {"UCCL_P2P_METRICS",
     "`address:port` at which metrics are served by HTTP as `/metrics`, for all endpoints of the user's "
     "processes on this host that name it; `[address]:port` for IPv6. Port 0: the system chooses, and the "
     "log says which. Empty: none are.",
     [](Text text, Options& o) { return o.metrics = text, Status{}; },
     [](const Options& o) { return o.metrics; }},
    {"UCCL_P2P_METRICS_PUBLIC",
     "1: UCCL_P2P_METRICS may name an address that other hosts reach. Whoever reaches it reads them.",
     [](Text text, Options& o) { return read_flag(text, o.metrics_public); },
     [](const Options& o) { return show_flag(o.metrics_public); }},
    {"UCCL_P2P_TRACE",
     "File for a trace of all transfers of the process, for chrome://tracing and ui.perfetto.dev; `%p` in "
     "its name stands for the process id. Empty: none.",
     [](Text text, Options& o) { return o.trace = text, Status{}; },
     [](const Options& o) { return o.trace; }},
    {"UCCL_P2P_TRACE_BYTES", "The trace ends when the file is as large as this.",
     [](Text text, Options& o) { return read_size(text, {4096, std::uint64_t{1} << 50}, o.trace_bytes); },
     [](const Options& o) { return show_size(o.trace_bytes); }},
    {"UCCL_P2P_LOG_LEVEL",
     "Least severe lines to log: trace, debug, info, warning, error or off, in letters of either case; 0, 1, "
     "2, 3 are info, warning, error, off.",
     read_log_level, [](const Options& /*options*/) { return std::string("warning"); }},
};

}  // namespace

std::span<const OptionVariable> engine_variables() { return kVariables; }

}  // namespace p2p
