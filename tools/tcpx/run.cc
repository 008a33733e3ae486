// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "run.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <sstream>
#include <thread>

#include "bootstrap.h"
#include "failure.h"
#include "tcpx/buffer.h"
#include "tcpx/environment.h"
#include "tcpx/transfer.h"

namespace tcpx::tool {
namespace {

using Clock = std::chrono::steady_clock;
using p2p::ErrorCode;
using p2p::Result;
using p2p::Status;

constexpr char kGreeting[] = "Hello from TCPX client!";
constexpr char kLoaded[] = "loaded";
constexpr unsigned kWarmUp = 2;
constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 34;

/// Memory of one side, and the bytes that it shall hold or held last, here.
class Buffer {
 public:
  static Result<Buffer> allocate(int gpu, std::uint64_t size) {
    auto memory = TcpxBuffer::allocate(gpu, size);
    if (!memory) return tl::unexpected(memory.error());
    return Buffer(std::move(*memory));
  }
  std::byte* data() const { return memory_.data(); }

  /// Different for each round, and from byte to byte.
  static std::byte pattern(std::uint64_t index, std::uint64_t round) {
    const std::uint64_t mixed = (index + 1) * 0x9e3779b97f4a7c15 + round * 0xbf58476d1ce4e5b9;
    return static_cast<std::byte>(mixed >> 56);
  }
  Status fill(std::uint64_t round) {
    for (std::uint64_t index = 0; index < bytes_.size(); ++index) bytes_[index] = pattern(index, round);
    if (bytes_.size() >= sizeof kGreeting) std::memcpy(bytes_.data(), kGreeting, sizeof kGreeting);
    return memory_.write(bytes_);
  }
  Status clear() {
    std::ranges::fill(bytes_, std::byte{});
    return memory_.write(bytes_);
  }
  /// The first byte that is wrong, or the size.
  Result<std::uint64_t> check(std::uint64_t round) {
    if (auto read = memory_.read(bytes_); !read) return tl::unexpected(read.error());
    const bool greeting = bytes_.size() >= sizeof kGreeting;
    if (greeting && std::memcmp(bytes_.data(), kGreeting, sizeof kGreeting) != 0) return 0;
    for (std::uint64_t index = greeting ? sizeof kGreeting : 0; index < bytes_.size(); ++index) {
      if (bytes_[index] != pattern(index, round)) return index;
    }
    return bytes_.size();
  }
  const char* text() const { return reinterpret_cast<const char*>(bytes_.data()); }

 private:
  explicit Buffer(TcpxBuffer memory) : memory_(std::move(memory)), bytes_(memory_.size()) {}
  TcpxBuffer memory_;
  std::vector<std::byte> bytes_;
};

/// One side, connected.
struct Side {
  Plan plan;
  Bootstrap bootstrap;
  std::vector<TcpxSession> sessions;  ///< one for each thread
  bool server = false;
  double connect_ms = 0;

  std::string other() const { return server ? "client" : "server"; }
};

/// Calls `step` with each index up to `count`, each in a thread of its own; the first error.
template <class Step>
Status in_threads(std::size_t count, Step&& step) {
  std::vector<Status> ended(count);
  std::vector<std::thread> threads;
  for (std::size_t index = 1; index < count; ++index) {
    threads.emplace_back([&, index] { ended[index] = step(index); });
  }
  ended[0] = step(0);
  for (std::thread& thread : threads) thread.join();
  const auto failed = std::ranges::find_if(ended, [](const Status& status) { return !status; });
  return failed == ended.end() ? Status{} : *failed;
}

/// Of several sessions each has its share of the channels, one at least.
Result<std::vector<TcpxSession>> open_sessions(const Place& place, const Plan& plan,
                                               const PluginReport& report) {
  TcpxOptions options;
  options.plugin = place.plugin;
  options.devices = place.devices;
  options.channels = std::max(1U, plan.channels / plan.threads);
  options.chunk_bytes = plan.chunk_bytes;
  options.window = plan.window;
  options.unpack = plan.unpack;
  options.cuda_device = place.gpu;
  // Host memory goes through the pool only where a program imitates the device.
  options.host_pool =
      place.gpu < 0 && (place.host_pool || (report.name == "softnet" && report.devices.front().unpack));
  std::vector<TcpxSession> sessions;
  for (unsigned thread = 0; thread < plan.threads; ++thread) {
    auto session = TcpxSession::open(options);
    if (!session) return tl::unexpected(session.error());
    sessions.push_back(std::move(*session));
  }
  return sessions;
}

void say(const Place& place, const std::string& line) {
  if (place.json) return;
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

Result<Bootstrap> open_bootstrap(const Place& place) {
  if (!place.host.empty()) return Bootstrap::dial(place.host, place.port, place.timeout);
  auto bootstrap = Bootstrap::serve(place.port, place.timeout,
                                    [&] { say(place, fmt::format("listening on port {}", place.port)); });
  if (bootstrap) say(place, "client: " + bootstrap->peer());
  return bootstrap;
}

/// The server takes the client's.
Result<Plan> agree(const Bootstrap& bootstrap, const Plan& plan, bool server) {
  if (!server) {
    if (auto sent = bootstrap.send_text(plan.encode()); !sent) return tl::unexpected(sent.error());
    return plan;
  }
  const auto text = bootstrap.receive_text();
  if (!text) return tl::unexpected(text.error());
  return Plan::decode(*text);
}

Status connect_sessions(Side& side, std::chrono::milliseconds timeout) {
  for (TcpxSession& session : side.sessions) {
    if (side.server) {
      const auto info = session.listen();
      if (!info) return tl::unexpected(info.error());
      if (auto sent = side.bootstrap.send(*info); !sent) return sent;
    } else {
      const auto info = side.bootstrap.receive();
      if (!info) return tl::unexpected(info.error());
      if (auto loaded = session.loadRemoteConnInfo("server", *info); !loaded) {
        // The server would wait for a client that does not come.
        (void)side.bootstrap.send_text(loaded.error().message);
        return loaded;
      }
    }
  }
  if (!side.server) {
    if (auto sent = side.bootstrap.send_text(kLoaded); !sent) return sent;
  } else {
    const auto heard = side.bootstrap.receive_text();
    if (!heard) return tl::unexpected(heard.error());
    if (*heard != kLoaded) return fail(ErrorCode::kProtocol, "the client does not connect: " + *heard);
  }
  return in_threads(side.sessions.size(), [&](std::size_t index) {
    TcpxSession& session = side.sessions[index];
    return side.server ? session.accept("client", timeout) : session.connect("server", timeout);
  });
}

Result<Side> connect(const Place& place, const Plan& plan) {
  const bool server = place.host.empty();
  // Before anybody waits for anybody: a plugin that does not open is said at once.
  const auto report = discover(place.plugin);
  if (!report) return tl::unexpected(report.error());
  say(place, fmt::format("{} from {}", report->name, report->path));
  auto bootstrap = open_bootstrap(place);
  if (!bootstrap) return tl::unexpected(bootstrap.error());
  auto agreed = agree(*bootstrap, plan, server);
  if (!agreed) return tl::unexpected(agreed.error());
  auto sessions = open_sessions(place, *agreed, *report);
  if (!sessions) return tl::unexpected(sessions.error());
  agreed->chunk_bytes = sessions->front().chunk_bytes();
  Side side{std::move(*agreed), std::move(*bootstrap), std::move(*sessions), server, 0};
  const auto start = Clock::now();
  if (auto connected = connect_sessions(side, place.timeout); !connected)
    return tl::unexpected(connected.error());
  side.connect_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  return side;
}

/// A message's memory, registered with every session of a side.
class Memory {
 public:
  static Result<Memory> open(Side& side, std::byte* data, std::uint64_t bytes) {
    Memory memory(side, bytes);
    for (TcpxSession& session : side.sessions) {
      const auto id = session.registerMemory(data, bytes);
      if (!id) return tl::unexpected(id.error());
      memory.ids_.push_back(*id);
      memory.transfers_.emplace_back(session, side.other());
    }
    return memory;
  }

  /// The client sends, the server receives; each session its share. Ends when all of it has.
  Status move(std::chrono::seconds timeout) {
    return in_threads(ids_.size(), [&](std::size_t index) { return move_share(index, timeout); });
  }

  Status close() {
    for (std::size_t index = 0; index < ids_.size(); ++index) {
      if (auto closed = side_->sessions[index].deregisterMemory(ids_[index]); !closed) return closed;
    }
    return {};
  }

 private:
  Memory(Side& side, std::uint64_t bytes) : side_(&side), bytes_(bytes) {}

  Status move_share(std::size_t index, std::chrono::seconds timeout) {
    const std::uint64_t share = (bytes_ + ids_.size() - 1) / ids_.size();
    const std::uint64_t from = std::min(bytes_, share * index);
    const std::uint64_t size = std::min(share, bytes_ - from);
    TcpxTransfer& transfer = transfers_[index];
    const Status posted = side_->server ? transfer.postRecv(ids_[index], from, size)
                                        : transfer.postSend(ids_[index], from, size);
    if (!posted) return posted;
    Status done = transfer.wait(timeout);
    transfer.release();
    return done;
  }

  Side* side_;
  std::uint64_t bytes_;
  std::vector<std::uint64_t> ids_;
  std::vector<TcpxTransfer> transfers_;
};

/// The server says "go" before it waits, and after the bytes are in place and, if asked, right.
Status hand_over(const Side& side, bool server_speaks, const std::string& text) {
  if (side.server == server_speaks) return side.bootstrap.send_text(text);
  const auto heard = side.bootstrap.receive_text();
  if (!heard) return tl::unexpected(heard.error());
  if (*heard == text) return {};
  return fail(ErrorCode::kProtocol, *heard);
}

Status transfer_size(Side& side, const Place& place, std::uint64_t bytes) {
  auto buffer = Buffer::allocate(place.gpu, bytes);
  if (!buffer) return tl::unexpected(buffer.error());
  const std::uint64_t round = bytes;
  if (auto set = side.server ? buffer->clear() : buffer->fill(round); !set) return set;
  auto memory = Memory::open(side, buffer->data(), bytes);
  if (!memory) return tl::unexpected(memory.error());
  const auto start = Clock::now();
  if (auto moved = memory->move(place.timeout); !moved) return moved;
  const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  if (place.times) {
    fmt::print(stderr, "[PERF] {} bytes in {:.0f} us, {:.3f} GB/s\n", bytes, us,
               static_cast<double>(bytes) / us / 1000);
  }
  std::string verdict = "all bytes right";
  if (side.server) {
    const auto wrong = buffer->check(round);
    if (!wrong) return tl::unexpected(wrong.error());
    if (*wrong != bytes) verdict = fmt::format("{} bytes: byte {} is wrong", bytes, *wrong);
    if (bytes >= sizeof kGreeting)
      fmt::print("{}: \"{}\"\n", bytes, std::string(buffer->text(), sizeof kGreeting - 1));
  }
  if (auto agreed = hand_over(side, true, verdict); !agreed) return agreed;
  if (verdict != "all bytes right") return fail(ErrorCode::kProtocol, verdict);
  if (place.json) {
    fmt::print("{{\"command\": \"transfer\", \"bytes\": {}, \"verified\": true}}\n", bytes);
  } else {
    fmt::print("{:>12} bytes  {}\n", bytes, verdict);
  }
  return memory->close();
}

struct Row {
  std::uint64_t bytes = 0;
  double best_us = 0;
  double median_us = 0;
  double gigabytes_per_second = 0;  ///< at the median
};

void print(const Row& row, const Plan& plan, bool json) {
  if (json) {
    fmt::print(
        "{{\"command\": \"perf\", \"bytes\": {}, \"channels\": {}, \"chunk_bytes\": {}, \"window\": {}, "
        "\"rounds\": {}, \"best_us\": {:.1f}, \"median_us\": {:.1f}, \"gb_per_s\": {:.3f}, \"verified\": "
        "true}}\n",
        row.bytes, plan.channels, plan.chunk_bytes, plan.window, plan.rounds, row.best_us, row.median_us,
        row.gigabytes_per_second);
  } else {
    fmt::print("{:>12}  {:>10.1f}  {:>10.1f}  {:>8.3f}\n", row.bytes, row.best_us, row.median_us,
               row.gigabytes_per_second);
  }
}

/// From the client's post until it hears that the server has all bytes in place: nothing is counted twice.
Result<Row> measure_size(Side& side, const Place& place, std::uint64_t bytes) {
  auto buffer = Buffer::allocate(place.gpu, bytes);
  if (!buffer) return tl::unexpected(buffer.error());
  if (auto filled = side.server ? Status{} : buffer->fill(1); !filled) return tl::unexpected(filled.error());
  auto memory = Memory::open(side, buffer->data(), bytes);
  if (!memory) return tl::unexpected(memory.error());
  std::vector<double> times;
  for (unsigned round = 0; round < kWarmUp + side.plan.rounds; ++round) {
    if (auto cleared = side.server ? buffer->clear() : Status{}; !cleared)
      return tl::unexpected(cleared.error());
    if (auto ready = hand_over(side, true, "ready"); !ready) return tl::unexpected(ready.error());
    const auto start = Clock::now();
    if (auto moved = memory->move(place.timeout); !moved) return tl::unexpected(moved.error());
    if (auto arrived = hand_over(side, true, "arrived"); !arrived) return tl::unexpected(arrived.error());
    if (round >= kWarmUp) {
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
    const auto wrong = side.server ? buffer->check(1) : Result<std::uint64_t>(bytes);
    if (!wrong) return tl::unexpected(wrong.error());
    if (*wrong != bytes) {
      return fail(ErrorCode::kProtocol,
                  fmt::format("{} bytes, round {}: byte {} is wrong", bytes, round, *wrong));
    }
  }
  if (auto closed = memory->close(); !closed) return tl::unexpected(closed.error());
  std::ranges::sort(times);
  const double median = times[times.size() / 2];
  return Row{bytes, times.front(), median, static_cast<double>(bytes) / median / 1000};
}

Status run_sizes(Side& side, const Place& place) {
  if (side.plan.kind == Plan::Kind::kConnect) return hand_over(side, true, "connected");
  if (side.plan.kind == Plan::Kind::kPerf && !side.server && !place.json) {
    fmt::print("{:>12}  {:>10}  {:>10}  {:>8}\n", "bytes", "best us", "median us", "GB/s");
  }
  for (const std::uint64_t bytes : side.plan.sizes) {
    if (side.plan.kind == Plan::Kind::kTransfer) {
      if (auto moved = transfer_size(side, place, bytes); !moved) return moved;
      continue;
    }
    const auto row = measure_size(side, place, bytes);
    if (!row) return tl::unexpected(row.error());
    if (!side.server) print(*row, side.plan, place.json);
  }
  // Plugins report a peer that closes first as a failure, so both agree that it is over.
  return hand_over(side, false, "done");
}

bool parse_number(const std::string& text, std::uint64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace

std::string Plan::encode() const {
  std::string text = fmt::format("tcpx3 {} {} {} {} {} {} {}", static_cast<int>(kind), channels, chunk_bytes,
                                 window, rounds, static_cast<int>(unpack), threads);
  for (const std::uint64_t size : sizes) text += fmt::format(" {}", size);
  return text;
}

Result<Plan> Plan::decode(const std::string& text) {
  std::istringstream words(text);
  std::string word;
  std::vector<std::uint64_t> values;
  words >> word;
  bool good = word == "tcpx3";
  while (good && words >> word) good = parse_number(word, values.emplace_back());
  constexpr std::size_t kFixed = 7;
  if (!good || values.size() < kFixed || values.size() > 1000 || values[0] > 2 || values[1] > 64 ||
      values[3] > 16 || values[4] == 0 || values[4] > 1000000 || values[5] > 2 || values[6] == 0 ||
      values[6] > 64 || std::ranges::any_of(values, [](std::uint64_t value) { return value > kMaxSize; })) {
    return fail(ErrorCode::kProtocol, "the client's plan is not one of this version's");
  }
  Plan plan{static_cast<Kind>(values[0]),
            static_cast<unsigned>(values[1]),
            values[2],
            static_cast<unsigned>(values[3]),
            {},
            static_cast<TcpxOptions::Unpack>(values[5]),
            static_cast<unsigned>(values[4]),
            static_cast<unsigned>(values[6])};
  plan.sizes.assign(values.begin() + kFixed, values.end());
  if (std::ranges::find(plan.sizes, 0U) != plan.sizes.end()) {
    return fail(ErrorCode::kProtocol, "the client's plan has an empty message");
  }
  return plan;
}

Status run(const Place& place, const Plan& plan) {
  for (const std::uint64_t bytes : plan.sizes) {
    if (bytes != 0 && bytes <= kMaxSize) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--sizes {}: a message has 1 byte to {} (16 GiB)", bytes, kMaxSize));
  }
  auto side = connect(place, plan);
  if (!side) return tl::unexpected(side.error());
  if (!place.json) {
    fmt::print("{}\n{} channels, {} threads, chunks of {} bytes, window {}; connected in {:.1f} ms\n",
               side->sessions.front().describe(), side->plan.channels, side->plan.threads,
               side->plan.chunk_bytes, side->plan.window, side->connect_ms);
  } else if (side->plan.kind == Plan::Kind::kConnect) {
    fmt::print("{{\"command\": \"connect\", \"channels\": {}, \"connect_ms\": {:.1f}}}\n",
               side->plan.channels, side->connect_ms);
  }
  std::fflush(stdout);
  return run_sizes(*side, place);
}

}  // namespace tcpx::tool
