// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// One of the two processes of a GPU test, and the program's start. The commands are the functions of Server.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "gpu_capture.h"
#include "gpu_memory.h"
#include "gpu_side.h"
#include "p2p/endpoint.h"
#include "support/bounds.h"
#include "support/command.h"
#include "support/hex.h"

namespace p2p::testing {
namespace {

using Clock = std::chrono::steady_clock;

struct OwnMemory {
  GpuMemory memory;
  MemoryRegion region;  // let go before the memory
  RegionId id{};
  std::byte* data = nullptr;
};

class Server {
 public:
  explicit Server(int window) : window_(window) {
    commands_ = {
        {"endpoint", [this](Words& words) { return endpoint(words); }},
        {"connect", [this](Words& words) { return connect(words); }},
        {"accept", [this](Words&) { return keep(endpoint_->accept(kLimit)); }},
        {"memory", [this](Words& words) { return memory(words); }},
        {"close", [this](Words& words) { return answer(connection_.close(words.time())); }},
        {"revoke", [this](Words& words) { return revoke(words); }},
        {"release", [this](Words& words) { return release(words); }},
        {"free_only", [this](Words& words) { return free_only(words); }},
        {"unmap", [this](Words& words) { return unmap(words); }},
        {"remap", [this](Words& words) { return remap(words); }},
        {"register_again", [this](Words& words) { return register_again(words); }},
        {"free", [this](Words& words) { return free(words); }},
        {"import", [this](Words& words) { return import(words); }},
        {"put", [this](Words& words) { return put(words); }},
        {"get", [this](Words& words) { return get(words); }},
        {"set", [this](Words& words) { return set(words); }},
        {"post", [this](Words& words) { return post(words); }},
        {"repeat", [this](Words& words) { return repeat(words); }},
        {"wait", [this](Words& words) { return wait(words); }},
        {"cancel", [this](Words& words) { return cancel(words); }},
        {"outcomes", [this](Words& words) { return outcomes(words); }},
        {"route", [this](Words& words) { return route(words); }},
        {"import_time", [this](Words& words) { return import_time(words); }},
        {"explain", [this](Words& words) { return explain(words); }},
        {"contexts", [](Words&) { return ok(fmt::format("{}", fmt::join(gpus_with_context(), ","))); }},
        {"capture",
         [this](Words& words) { return answer(capture_.begin(static_cast<int>(words.number()))); }},
        {"captured", [this](Words&) { return answer(capture_.end()); }},
        {"share", [this](Words& words) { return share(words); }},
        {"open_shared", [this](Words& words) { return open(words); }},
    };
  }

  std::string run(const std::string& line) {
    Words words(line);
    const auto command = commands_.find(words.text());
    if (command == commands_.end()) return "error unknown " + line;
    return command->second(words);
  }

 private:
  /// endpoint TRANSPORT|- BLOCKS|-1 KEEPALIVE_MS : "ok PORT"
  std::string endpoint(Words& words) {
    Options options;
    options.listen_address = "127.0.0.1";
    if (const std::string transport = words.text(); transport != "-") options.transports = {transport};
    if (const std::string blocks = words.text(); blocks != "-1") {
      options.gpu_blocks = static_cast<unsigned>(Words(blocks).number());
    }
    options.keepalive = words.time();
    auto made = Endpoint::create(options);
    if (!made) return answer_error(made);
    endpoint_.emplace(std::move(*made));
    return ok(fmt::format("{}", endpoint_->port()));
  }

  std::string keep(Result<Connection> connection) {
    if (!connection) return answer_error(connection);
    connection_ = std::move(*connection);
    return "ok";
  }

  /// connect PORT; the connection before it is used no more.
  std::string connect(Words& words) {
    return keep(endpoint_->connect("127.0.0.1", static_cast<std::uint16_t>(words.number()), kLimit));
  }

  /// memory PLACE SIZE BASE : "ok INDEX DESCRIPTOR EXTENT"; as much as BASE lies behind the region, too.
  std::string memory(Words& words) {
    const std::string place = words.text();
    const std::uint64_t size = words.number();
    const std::uint64_t base = words.number();
    const std::uint64_t extent = size + 2 * base;
    auto made = GpuMemory::allocate(place, extent);
    if (!made) return answer_error(made);
    std::byte* const data = made->data();
    auto region = endpoint_->register_memory(data + base, size);
    if (!region) return answer_error(region);
    const std::string hex = to_hex(region->descriptor());
    const RegionId id = region->id();
    memories_.push_back({std::move(*made), std::move(*region), id, data});
    return ok(fmt::format("{} {} {}", memories_.size() - 1, hex, extent));
  }

  OwnMemory& mine(Words& words) { return memories_.at(words.number()); }

  std::string revoke(Words& words) {
    mine(words).region = MemoryRegion();
    return "ok";
  }

  /// release INDEX MS
  std::string release(Words& words) {
    MemoryRegion& region = mine(words).region;
    return answer(region.release(words.time()));
  }

  /// What a program should not do: the registration stays.
  std::string free_only(Words& words) {
    mine(words).memory = GpuMemory();
    return "ok";
  }

  /// unmap|remap INDEX OFFSET: of mapped memory, behind the engine's back.
  std::string unmap(Words& words) {
    GpuMemory& memory = mine(words).memory;
    return answer(memory.unmap(words.number()));
  }
  std::string remap(Words& words) {
    GpuMemory& memory = mine(words).memory;
    return answer(memory.remap(words.number()));
  }

  /// register_again INDEX SIZE : "ok DESCRIPTOR": what is there now, from its start on, in place of what was
  /// registered.
  std::string register_again(Words& words) {
    OwnMemory& own = mine(words);
    own.region = MemoryRegion();
    auto region = endpoint_->register_memory(own.data, words.number());
    if (!region) return answer_error(region);
    own.region = std::move(*region);
    own.id = own.region.id();
    return ok(to_hex(own.region.descriptor()));
  }

  std::string free(Words& words) {
    OwnMemory& own = mine(words);
    own.region = MemoryRegion();
    own.memory = GpuMemory();
    return "ok";
  }

  /// route host|cuda host|cuda : "ok TRANSPORT REASON"
  std::string route(Words& words) {
    const auto kind = [&] { return words.text() == "cuda" ? MemoryKind::kCuda : MemoryKind::kHost; };
    const MemoryKind local = kind();
    const MemoryKind remote = kind();
    for (const Route& route : connection_.routes()) {
      if (route.local != local || route.remote != remote) continue;
      return ok(fmt::format("{} {}", route.transport.empty() ? "none" : route.transport, route.reason));
    }
    return "error no_route none is told";
  }

  /// explain INDEX REMOTE : "ok TRANSPORT PASSED..."
  std::string explain(Words& words) {
    const RegionId local = mine(words).id;
    const auto told = connection_.explain(local, RemoteRegionId{static_cast<std::uint32_t>(words.number())});
    if (!told) return answer_error(told);
    std::string text = told->transport.empty() ? "none" : told->transport;
    for (const auto& passed : told->passed) {
      text += fmt::format(" [{} {}: {}]", passed.transport, to_string(passed.obstacle), passed.reason);
    }
    return ok(text);
  }

  /// import DESCRIPTOR : "ok ID"
  std::string import(Words& words) {
    const auto descriptor = from_hex(words.text());
    if (!descriptor) return answer_error(descriptor);
    const auto id = connection_.import_region(*descriptor);
    if (!id) return answer_error(id);
    return ok(fmt::format("{}", static_cast<std::uint32_t>(*id)));
  }

  /// import_time DESCRIPTOR : "ok MICROSECONDS" until it can be used
  std::string import_time(Words& words) {
    const auto descriptor = from_hex(words.text());
    if (!descriptor) return answer_error(descriptor);
    const auto begin = Clock::now();
    const auto id = connection_.import_region(*descriptor);
    if (!id) return answer_error(id);
    const Status usable = connection_.wait_imported(*id, kLimit);
    const auto time = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
    return usable ? ok(fmt::format("{}", time.count())) : answer(usable);
  }

  /// put|get|set INDEX OFFSET SIZE [VALUE], from and to the window's start
  std::string put(Words& words) {
    const OwnMemory& own = mine(words);
    const std::uint64_t offset = words.number();
    return answer(own.memory.store(offset, window_.bytes().first(words.number())));
  }

  std::string get(Words& words) {
    const OwnMemory& own = mine(words);
    const std::uint64_t offset = words.number();
    return answer(own.memory.load(offset, window_.bytes().first(words.number())));
  }

  std::string set(Words& words) {
    const OwnMemory& own = mine(words);
    const std::uint64_t offset = words.number();
    const std::uint64_t size = words.number();
    return answer(own.memory.set(offset, size, static_cast<std::byte>(words.number())));
  }

  struct List {
    std::vector<LocalSpan> local;
    std::vector<RemoteSpan> remote;
  };

  /// The first pieces of the window.
  List list(std::uint64_t count) {
    std::vector<Piece> pieces(count);
    std::memcpy(pieces.data(), window_.bytes().data(), count * sizeof(Piece));
    List list;
    for (const Piece& piece : pieces) {
      const OwnMemory& own = memories_.at(piece.memory);
      list.local.push_back({own.id, own.data + piece.offset, piece.size});
      list.remote.push_back({RemoteRegionId{piece.remote}, piece.address, piece.size});
    }
    return list;
  }

  Transfer start(const std::string& operation, const List& list) {
    if (operation == "write") return connection_.write(list.local, list.remote);
    if (operation == "read") return connection_.read(list.local, list.remote);
    return operation == "send" ? connection_.send(list.local) : connection_.recv(list.local);
  }

  /// post write|read|send|recv PIECES TIMES : "ok FIRST"
  std::string post(Words& words) {
    const std::string operation = words.text();
    const List pieces = list(words.number());
    const std::size_t first = transfers_.size();
    for (std::uint64_t times = words.number(); times > 0; --times) {
      transfers_.push_back(start(operation, pieces));
    }
    return ok(fmt::format("{}", first));
  }

  /// repeat write|read PIECES TIMES DEPTH: all of them, at most DEPTH at a time, the first error ends it.
  std::string repeat(Words& words) {
    const std::string operation = words.text();
    const List pieces = list(words.number());
    const std::uint64_t times = words.number();
    const std::uint64_t depth = words.number();
    std::deque<Transfer> under_way;
    for (std::uint64_t posted = 0; posted < times || !under_way.empty();) {
      if (posted < times && under_way.size() < depth) {
        under_way.push_back(start(operation, pieces));
        ++posted;
        continue;
      }
      if (const Status done = under_way.front().wait(kLimit); !done) return answer(done);
      under_way.pop_front();
    }
    return "ok";
  }

  /// wait TRANSFER MS : "ok BYTES"
  std::string wait(Words& words) {
    const Transfer& transfer = transfers_.at(words.number());
    const Status done = transfer.wait(words.time());
    return done ? ok(fmt::format("{}", transfer.bytes())) : answer(done);
  }

  /// cancel FIRST COUNT : "ok"
  std::string cancel(Words& words) {
    const std::uint64_t first = words.number();
    const std::uint64_t count = words.number();
    for (std::uint64_t i = first; i < first + count; ++i) transfers_.at(i).cancel();
    return "ok";
  }

  /// outcomes FIRST COUNT MS : "ok GOOD BAD UNFINISHED SILENT CODES MESSAGE", MS for all of them
  std::string outcomes(Words& words) {
    const std::uint64_t first = words.number();
    const std::uint64_t count = words.number();
    const auto deadline = Clock::now() + words.time();
    Outcomes found;
    for (std::uint64_t i = first; i < first + count; ++i) {
      const Transfer& transfer = transfers_.at(i);
      const auto left = std::max<Clock::duration>(deadline - Clock::now(), std::chrono::milliseconds(1));
      const Status done = transfer.wait(left);
      if (!transfer.done()) {
        ++found.unfinished;
      } else if (done) {
        ++found.good;
      } else {
        note(found, done.error());
      }
    }
    return ok(fmt::format("{} {} {} {} {} {}", found.good, found.bad, found.unfinished, found.silent,
                          found.codes.empty() ? "-" : found.codes, found.message));
  }

  static void note(Outcomes& found, const Error& error) {
    const std::string code(to_string(error.code));
    if (("," + found.codes + ",").find("," + code + ",") == std::string::npos) {
      found.codes += (found.codes.empty() ? "" : ",") + code;
    }
    const bool worse = error.message.find("may still write here") != std::string::npos;
    if (found.bad++ == 0 || worse) found.message = error.message;
    if (error.message.empty()) ++found.silent;
  }

  /// share INDEX: the driver's handle of the allocation, at the window's start.
  std::string share(Words& words) {
    const auto handle = mine(words).memory.share();
    if (!handle) return answer_error(handle);
    std::ranges::copy(*handle, window_.bytes().begin());
    return "ok";
  }

  /// open_shared DEVICE: what `share` put there, without the engine.
  std::string open(Words& words) {
    GpuHandle handle{};
    std::ranges::copy(window_.bytes().first(handle.size()), handle.begin());
    return answer(testing::open_shared(handle, static_cast<int>(words.number())));
  }

  Window window_;
  std::map<std::string, std::function<std::string(Words&)>> commands_;
  std::optional<Endpoint> endpoint_;
  Connection connection_;
  std::deque<OwnMemory> memories_;
  std::vector<Transfer> transfers_;
  GpuCapture capture_;
};

int serve(int window) {
  Server server(window);
  for (std::string line; std::getline(std::cin, line);) std::cout << server.run(line) << std::endl;
  return 0;
}

}  // namespace
}  // namespace p2p::testing

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--serve") {
    return p2p::testing::serve(static_cast<int>(p2p::testing::Words(argv[2]).number()));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
