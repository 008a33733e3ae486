// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A process with an engine that does what it is told, a line at a time, and answers each line with "ok ...",
// or "error <code> <sentence>". The commands are the functions of Peer below.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bounds.h"
#include "command.h"
#include "hex.h"
#include "memory.h"
#include "p2p/endpoint.h"
#include "p2p/log.h"

namespace p2p::testing {
namespace {

using std::chrono::milliseconds;

struct Region {
  Pages pages;
  MemoryRegion registration;
};

// Copies of `cma` wait for so long before they reach the kernel, as those of a thread that was put to sleep
// on the way do.
std::atomic<std::chrono::milliseconds::rep> copy_delay{0};
std::atomic<std::uint64_t> copies_begun{0};

/// delay_copies MS : "ok BEGUN", how many copies had begun until now
std::string delay_copies(Words& words) {
  copy_delay = words.time().count();
  return fmt::format("ok {}", copies_begun.load());
}

std::atomic<std::uint64_t> lines_logged{0};

void count_lines() {
  set_log_sink([](LogLevel, std::string_view line) {
    ++lines_logged;
    fmt::print(stderr, "{}\n", line);
  });
}

/// open_files N : the application opens so many, and closes them
std::string open_files(Words& words) {
  const std::uint64_t wanted = words.number();
  std::vector<int> files;
  while (files.size() < wanted) {
    files.push_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (files.back() >= 0) continue;
    files.pop_back();
    break;
  }
  for (const int one : files) ::close(one);
  return files.size() == wanted ? "ok" : fmt::format("error no_files only {} could be opened", files.size());
}

/// limit_memory BYTES : so many more than this process has now, in all; 0: as many as it likes. "ok 0"
std::string limit_memory(Words& words) {
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = limit.rlim_max;
  if (const std::uint64_t more = words.number(); more != 0) {
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    limit.rlim_cur = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + more;
  }
  return ::setrlimit(RLIMIT_AS, &limit) == 0 ? "ok 0" : "error system setrlimit";
}

class Peer {
 public:
  Peer() {
    commands_ = {
        {"endpoint", [this](Words& words) { return make_endpoint(words); }},
        {"drop_endpoint", [this](Words&) { return drop_endpoint(); }},
        {"accept", [this](Words& words) { return keep(endpoint_->accept(words.time())); }},
        {"accept_drop", [this](Words& words) { return accept_drop(words); }},
        {"connect", [this](Words& words) { return connect(words); }},
        {"connect_async", [this](Words& words) { return connect_async(words); }},
        {"open", [this](Words& words) { return answer(connection(words).wait_open(words.time())); }},
        {"close", [this](Words& words) { return answer(connection(words).close(words.time())); }},
        {"status", [this](Words& words) { return answer(connection(words).status()); }},
        {"routes", [this](Words& words) { return ok(connection(words).routes().front().detail); }},
        {"connections", [this](Words&) { return ok(fmt::format("{}", endpoint_->connections().size())); }},
        {"region", [this](Words& words) { return make_region(words); }},
        {"drop_region", [this](Words& words) { return drop_region(words); }},
        {"spoil", [this](Words& words) { return spoil_pages(words); }},
        {"fill", [this](Words& words) { return fill_bytes(words); }},
        {"check", [this](Words& words) { return check_bytes(words); }},
        {"clear", [this](Words& words) { return clear_bytes(words); }},
        {"check_clear", [this](Words& words) { return check_clear(words); }},
        {"check_only", [this](Words& words) { return check_only(words); }},
        {"import", [this](Words& words) { return import(words); }},
        {"write", [this](Words& words) { return one_sided(words, true); }},
        {"read", [this](Words& words) { return one_sided(words, false); }},
        {"write_list", [this](Words& words) { return write_list(words); }},
        {"send", [this](Words& words) { return two_sided(words, true); }},
        {"recv", [this](Words& words) { return two_sided(words, false); }},
        {"notify", [this](Words& words) { return notify(words); }},
        {"notified", [this](Words& words) { return notified(words); }},
        {"wait", [this](Words& words) { return wait(words); }},
        {"limit_memory", [](Words& words) { return limit_memory(words); }},
        {"open_files", [](Words& words) { return open_files(words); }},
        {"log_lines", [](Words&) { return ok(fmt::format("{}", lines_logged.load())); }},
        {"refused", [this](Words&) { return refused(); }},
        {"delay_copies", [](Words& words) { return delay_copies(words); }},
    };
  }

  std::string run(const std::string& line) {
    Words words(line);
    const auto command = commands_.find(words.text());
    if (command == commands_.end()) return "error unknown " + line;
    if (command->first != "endpoint" && !endpoint_) return "error no endpoint";
    return command->second(words);
  }

 private:
  /// endpoint LISTEN|- PORT TRANSPORT|- KEEPALIVE_MS KEY_FILE|- WORKERS STREAMS INTERFACES|- HUNG_MS
  /// IDLE_MS TLS PLUGIN|- [ANNOUNCE] : "ok ADDRESS PORT"
  std::string make_endpoint(Words& words) {
    Options options;
    if (const std::string address = words.text(); address != "-") options.listen_address = address;
    options.port = static_cast<std::uint16_t>(words.number());
    if (const std::string names = words.text(); names != "-") options.transports = names_in(names);
    options.keepalive = words.time();
    if (const std::string key = words.text(); key != "-") options.key_file = key;
    options.workers = static_cast<unsigned>(words.number());
    options.streams = static_cast<unsigned>(words.number());
    if (const std::string names = words.text(); names != "-") options.interfaces = names_in(names);
    options.hung = words.time();
    options.idle = words.time();
    options.tls = static_cast<Encryption>(words.number());
    if (const std::string plugin = words.text(); plugin != "-") options.nccl_net.plugin = plugin;
    options.announce = words.text();
    auto endpoint = Endpoint::create(options);
    if (!endpoint) return answer_error(endpoint);
    endpoint_.emplace(std::move(*endpoint));
    return ok(fmt::format("{} {}", endpoint_->address(), endpoint_->port()));
  }

  /// refused : "ok STRANGERS CONNECTIONS"
  std::string refused() {
    const Stats stats = endpoint_->stats();
    return ok(fmt::format("{} {}", stats.strangers_refused, stats.connections_refused));
  }

  std::string drop_endpoint() {
    endpoint_.reset();
    return "ok";
  }

  /// Of the connection that the last accept or connect gave: "ok INDEX"
  std::string keep(Result<Connection> connection) {
    if (!connection) return answer_error(connection);
    connections_.push_back(std::move(*connection));
    return ok(fmt::format("{}", connections_.size() - 1));
  }

  /// connect HOST PORT MS
  std::string connect(Words& words) {
    const std::string host = words.text();
    const auto port = static_cast<std::uint16_t>(words.number());
    return keep(endpoint_->connect(host, port, words.time()));
  }

  std::string connect_async(Words& words) {
    const std::string host = words.text();
    const auto port = static_cast<std::uint16_t>(words.number());
    return keep(endpoint_->connect_async(host, port, words.time()));
  }

  /// An invalid index is a fault of the test: the program ends.
  Connection& connection(Words& words) { return connections_.at(words.number()); }

  /// region SIZE : "ok INDEX DESCRIPTOR"
  std::string make_region(Words& words) {
    Pages pages(words.number());
    auto registration = endpoint_->register_memory(pages.data(), pages.size());
    if (!registration) return answer_error(registration);
    const std::string hex = to_hex(registration->descriptor());
    regions_.push_back({std::move(pages), std::move(*registration)});
    return ok(fmt::format("{} {}", regions_.size() - 1, hex));
  }

  /// drop_region REGION: from then on nobody but this process touches the memory.
  std::string drop_region(Words& words) {
    return answer(regions_.at(words.number()).registration.release(kLimit));
  }

  /// REGION OFFSET SIZE
  std::span<std::byte> part(Words& words) {
    const Region& region = regions_.at(words.number());
    const std::uint64_t offset = words.number();
    return region.pages.part(offset, words.number());
  }

  /// spoil REGION OFFSET SIZE HOW : see memory.h
  std::string spoil_pages(Words& words) {
    const auto pages = part(words);
    spoil(pages, static_cast<Bad>(words.number()));
    return "ok";
  }

  std::string fill_bytes(Words& words) {
    const auto bytes = part(words);
    fill(bytes, words.number());
    return "ok";
  }

  std::string check_bytes(Words& words) {
    const auto bytes = part(words);
    const auto at = difference(bytes, words.number());
    return at ? fmt::format("error differs at {}", *at) : "ok";
  }

  std::string clear_bytes(Words& words) {
    set_all(part(words), std::byte{});
    return "ok";
  }

  std::string check_clear(Words& words) {
    const auto at = first_not(part(words), std::byte{});
    return at ? fmt::format("error not clear at {}", *at) : "ok";
  }

  /// check_only REGION OFFSET SIZE VALUE: all bytes are zero or the value.
  std::string check_only(Words& words) {
    const auto bytes = part(words);
    const auto value = static_cast<std::byte>(words.number());
    const auto at = first_neither(bytes, value, std::byte{});
    return at ? fmt::format("error other bytes at {}", *at) : "ok";
  }

  /// accept_drop MS: takes a connection and forgets it.
  std::string accept_drop(Words& words) {
    const auto connection = endpoint_->accept(words.time());
    return connection ? "ok" : answer_error(connection);
  }

  /// import CONNECTION DESCRIPTOR : "ok ID"
  std::string import(Words& words) {
    Connection& over = connection(words);
    const auto descriptor = from_hex(words.text());
    if (!descriptor) return answer_error(descriptor);
    const auto id = over.import_region(*descriptor);
    if (!id) return answer_error(id);
    return ok(fmt::format("{}", static_cast<std::uint32_t>(*id)));
  }

  std::string keep(Transfer transfer) {
    transfers_.push_back(std::move(transfer));
    return ok(fmt::format("{}", transfers_.size() - 1));
  }

  LocalSpan span(Words& words) {
    const MemoryRegion& region = regions_.at(words.number()).registration;
    const std::uint64_t offset = words.number();
    return region.span(offset, words.number());
  }

  /// write|read CONNECTION REGION OFFSET SIZE REMOTE ADDRESS : "ok TRANSFER"
  std::string one_sided(Words& words, bool write) {
    Connection& over = connection(words);
    const LocalSpan local = span(words);
    const auto id = static_cast<RemoteRegionId>(words.number());
    const RemoteSpan remote{id, words.number(), local.size};
    return keep(write ? over.write(local, remote) : over.read(local, remote));
  }

  /// The same as write, by blocks of 4099 bytes that are given from the last one to the first.
  std::string write_list(Words& words) {
    Connection& over = connection(words);
    const LocalSpan all = span(words);
    const auto id = static_cast<RemoteRegionId>(words.number());
    const std::uint64_t address = words.number();
    std::vector<LocalSpan> from;
    std::vector<RemoteSpan> to;
    for (std::uint64_t end = all.size, size = 0; end != 0; end -= size) {
      size = std::min<std::uint64_t>(4099, end);
      from.push_back({all.region, all.data + (end - size), size});
      to.push_back({id, address + end - size, size});
    }
    return keep(over.write(from, to));
  }

  /// send|recv CONNECTION REGION OFFSET SIZE : "ok TRANSFER"
  std::string two_sided(Words& words, bool send) {
    Connection& over = connection(words);
    const LocalSpan local = span(words);
    return keep(send ? over.send(local) : over.recv(local));
  }

  /// notify CONNECTION SIZE SEED : "ok TRANSFER"
  std::string notify(Words& words) {
    Connection& over = connection(words);
    std::string payload(words.number(), '\0');
    fill(std::as_writable_bytes(std::span(payload)), words.number());
    return keep(over.notify(payload));
  }

  /// notified CONNECTION MS : the next one, "ok SIZE true|false TEXT"; true if it is the pattern whose seed
  /// is its size, and the text if it is short
  std::string notified(Words& words) {
    Connection& over = connection(words);
    const auto deadline = std::chrono::steady_clock::now() + words.time();
    while (notifications_.empty()) {
      for (std::string& text : over.take_notifications()) notifications_.push_back(std::move(text));
      if (!notifications_.empty()) break;
      if (std::chrono::steady_clock::now() > deadline) return "error timed_out no notification came";
      std::this_thread::sleep_for(milliseconds(1));
    }
    const std::string text = std::move(notifications_.front());
    notifications_.erase(notifications_.begin());
    const bool patterned = !difference(std::as_bytes(std::span(text)), text.size());
    return ok(fmt::format("{} {} {}", text.size(), patterned, text.size() <= 64 ? text : ""));
  }

  /// wait TRANSFER MS : "ok BYTES"
  std::string wait(Words& words) {
    const Transfer& transfer = transfers_.at(words.number());
    const Status done = transfer.wait(words.time());
    return done ? ok(fmt::format("{}", transfer.bytes())) : answer(done);
  }

  std::map<std::string, std::function<std::string(Words&)>> commands_;
  std::optional<Endpoint> endpoint_;
  std::vector<Region> regions_;
  std::vector<Connection> connections_;
  std::vector<Transfer> transfers_;
  std::vector<std::string> notifications_;
};

}  // namespace

void delay_copy() {
  ++copies_begun;
  if (const auto delay = copy_delay.load(); delay != 0) std::this_thread::sleep_for(milliseconds(delay));
}

}  // namespace p2p::testing

// In place of the C library's, for the whole program and the engine's library.
extern "C" __attribute__((visibility("default"))) ssize_t process_vm_writev(pid_t pid, const iovec* local,
                                                                            unsigned long local_count,
                                                                            const iovec* remote,
                                                                            unsigned long remote_count,
                                                                            unsigned long flags) {
  p2p::testing::delay_copy();
  return ::syscall(SYS_process_vm_writev, pid, local, local_count, remote, remote_count, flags);
}

#if defined(P2P_TSAN)
// The tests kill this process, so what the sanitizer finds must end it at once to be seen.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "halt_on_error=1";
}
#endif

int main() {
  p2p::testing::count_lines();
  p2p::testing::Peer peer;
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "quit") break;
    std::cout << peer.run(line) << std::endl;
  }
  return 0;
}
