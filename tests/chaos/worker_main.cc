// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The process under test: an endpoint made from the environment, which does what the world says, a line at a
// time. A line begins with a number; one other than 0 is answered, "NUMBER ok ..." or "NUMBER error <code>
// <sentence>". Notifications are told as "note CONNECTION BYTES TEXT".
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "arena.h"
#include "board.h"
#include "p2p/endpoint.h"
#include "support/command.h"
#include "support/hex.h"
#include "support/memory.h"
#include "support/process.h"

namespace p2p::chaos {
namespace {

using testing::answer;
using testing::answer_error;
using testing::ok;
using testing::Words;
using Clock = std::chrono::steady_clock;

/// The soft limit on open files becomes what is open and `more`; 0: what it was in the beginning.
std::string limit_files(Words& words) {
  static const rlim_t usual = [] {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
  }();
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const std::uint64_t more = words.number();
  const int next = ::dup(0);  // the least number that is free
  ::close(next);
  limit.rlim_cur = more == 0 ? usual : static_cast<rlim_t>(next) + more - 1;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? "ok" : "error system setrlimit";
}

class Worker {
 public:
  Worker(Endpoint endpoint, const std::string& board)
      : board_(Board::Worker(), board), endpoint_(std::move(endpoint)) {
    commands_ = {
        {"address",
         [this](Words&) { return ok(fmt::format("{} {}", endpoint_.address(), endpoint_.port())); }},
        {"region", [this](Words& words) { return add_region(words); }},
        {"release", [this](Words& words) { return release(words); }},
        {"connect", [this](Words& words) { return connect(words); }},
        {"accept", [this](Words& words) { return accept(words); }},
        {"import", [this](Words& words) { return import(words); }},
        {"transfer", [this](Words& words) { return transfer(words); }},
        {"cancel", [this](Words& words) { return cancel(words); }},
        {"close", [this](Words& words) { return answer(connections_[words.number()].close(words.time())); }},
        {"open", [this](Words&) { return ok(fmt::format("{}", endpoint_.connections().size())); }},
        {"forget", [this](Words&) { return forget(); }},
        {"limit_files", limit_files},
        {"spoil", [this](Words& words) { return spoil(words); }},
        {"mend", [this](Words& words) { return mend(words); }},
        {"fork", [this](Words& words) { return fork_child(words); }},
        {"children", [this](Words& words) { return children(words); }},
        {"lost", [this](Words&) { return lost(); }},
    };
  }

  std::string run(const std::string& line) {
    Words words(line);
    const std::uint64_t number = words.number();
    const auto command = commands_.find(words.text());
    const std::string said = command == commands_.end() ? "error unknown " + line : command->second(words);
    return number == 0 ? "" : fmt::format("{} {}\n", number, said);
  }

  std::string notes() {
    std::string lines;
    for (const auto& [number, connection] : connections_) {
      for (const std::string& text : connection.take_notifications()) {
        lines += fmt::format("note {} {} {}\n", number, text.size(), text.substr(0, text.find(' ')));
      }
    }
    return lines;
  }

 private:
  struct Region {
    MemoryRegion handle;
    RegionId id{};
    std::byte* data = nullptr;
  };

  /// region R OFFSET SIZE [DESCRIPTOR] : DESCRIPTOR. With one: in place of that region, which was released.
  std::string add_region(Words& words) {
    const std::uint64_t number = words.number();
    const std::uint64_t offset = words.number();
    const std::uint64_t size = words.number();
    RegionOptions options;
    if (const auto before = testing::from_hex(words.text())) options.again = *before;
    auto region = endpoint_.register_memory(&board_.arena()[offset], size, options);
    if (!region) return answer_error(region);
    const std::string hex = testing::to_hex(region->descriptor());
    regions_.at(number) = {std::move(*region), {}, &board_.arena()[offset]};
    regions_.at(number).id = regions_.at(number).handle.id();
    return ok(hex);
  }

  /// release R MS
  std::string release(Words& words) {
    Region& region = regions_.at(words.number());
    return answer(region.handle.release(words.time()));
  }

  /// connect C HOST PORT MS
  std::string connect(Words& words) {
    const std::uint64_t number = words.number();
    const std::string host = words.text();
    const auto port = static_cast<std::uint16_t>(words.number());
    auto connection = endpoint_.connect(host, port, words.time(), fmt::format("{}", number));
    if (!connection) return answer_error(connection);
    connections_[number] = std::move(*connection);
    return "ok";
  }

  /// accept C MS: the one that the peer calls C; others, of peers that died meanwhile, are forgotten.
  std::string accept(Words& words) {
    const std::uint64_t number = words.number();
    const auto deadline = Clock::now() + words.time();
    for (;;) {
      auto connection = endpoint_.accept(std::max(deadline - Clock::now(), Clock::duration{}));
      if (!connection) return answer_error(connection);
      if (connection->peer().note != fmt::format("{}", number) || !connection->status()) continue;
      connections_[number] = std::move(*connection);
      return "ok";
    }
  }

  /// import C R DESCRIPTOR MS [again]
  std::string import(Words& words) {
    const std::uint64_t number = words.number();
    const std::uint64_t region = words.number();
    const auto descriptor = testing::from_hex(words.text());
    if (!descriptor) return answer_error(descriptor);
    const auto limit = words.time();
    const auto id = connections_[number].import_region(*descriptor, words.text() == "again");
    if (!id) return answer_error(id);
    imports_[{number, region}] = {*id, descriptor->address, descriptor->size};
    return answer(connections_[number].wait_imported(*id, limit));
  }

  /// transfer KIND C SLOT NOTE|- PREPARE CANCEL_US|- DROP VERIFY LOCAL REMOTE BLOCKS (LOCAL REMOTE SIZE)...
  /// Without blocks, of strided memory here and there: (OFFSET BLOCK COUNT STRIDE ROWS ROW_STRIDE)...
  /// Offsets count from the beginnings of the regions. The bytes of NOTE follow it, cut at the first blank.
  std::string transfer(Words& words) {
    const std::string kind = words.text();
    const std::uint64_t connection = words.number();
    const std::uint64_t slot = words.number();
    const std::string note = words.text();
    const bool prepare = words.number() != 0;
    const std::string patience = words.text();
    const bool drop = words.number() != 0;
    PostOptions options;
    options.verify = words.number() != 0;
    if (note != "-") options.notification = note + std::string(slot * 37, ' ');
    Region& region = regions_.at(words.number());
    const RemoteSpan far = imports_[{connection, words.number()}];
    const Transfer started = start(connections_[connection], {kind, prepare, options}, region, far, words);
    transfers_[slot] = started;
    tell_the_end(started, slot, drop ? &region : nullptr);
    if (patience != "-") {
      const auto end = Clock::now() + std::chrono::microseconds(std::stoul(patience));
      while (Clock::now() < end) {
      }
      started.cancel();
    }
    return "ok";
  }

  struct How {
    std::string kind;
    bool prepare = false;
    PostOptions options;
  };

  static Transfer start(const Connection& over, const How& how, const Region& region, const RemoteSpan& far,
                        Words& words) {
    std::vector<LocalSpan> local(words.number());
    std::vector<RemoteSpan> remote(local.size());
    if (local.empty()) {
      const std::vector here{LocalStrided{region.id, region.data + words.number(), strides(words)}};
      const std::vector there{RemoteStrided{far.region, far.address + words.number(), strides(words)}};
      return access(over, how, std::span(here), std::span(there));
    }
    for (std::size_t i = 0; i != local.size(); ++i) {
      local[i] = {region.id, region.data + words.number(), 0};
      remote[i] = {far.region, far.address + words.number(), 0};
      local[i].size = remote[i].size = words.number();
    }
    if (how.kind == "send") return over.send(local);
    if (how.kind == "recv") return over.recv(local);
    return access(over, how, std::span<const LocalSpan>(local), std::span<const RemoteSpan>(remote));
  }

  template <class Local, class Remote>
  static Transfer access(const Connection& over, const How& how, std::span<const Local> local,
                         std::span<const Remote> remote) {
    const bool write = how.kind == "write";
    if (how.prepare) {
      const auto list = write ? over.prepare_write(local, remote) : over.prepare_read(local, remote);
      if (list) return list->post(how.options);
    }
    return write ? over.write(local, remote, how.options) : over.read(local, remote, how.options);
  }

  static Strides strides(Words& words) {
    Strides read{.block = words.number()};
    read.count = words.number();
    read.stride = static_cast<std::int64_t>(words.number());
    read.rows = words.number();
    read.row_stride = static_cast<std::int64_t>(words.number());
    return read;
  }

  /// Its end is told on the board; `dropped`, if any, goes in the callback.
  void tell_the_end(const Transfer& started, std::uint64_t slot, Region* dropped) {
    Ending& ending = board_.ending(slot);
    const auto region = std::make_shared<MemoryRegion>(dropped ? std::move(dropped->handle) : MemoryRegion());
    started.on_done([&ending, started, region] {
      *region = MemoryRegion();
      const Status status = started.status();
      ending.code = status ? Ending::kSuccess : static_cast<std::int32_t>(status.error().code);
      ending.bytes = started.bytes();
      ending.message[status ? 0
                            : status.error().message.copy(ending.message.data(), ending.message.size() - 1)] =
          0;
      ending.state.store(Ending::kEnded, std::memory_order_release);
    });
  }

  std::string cancel(Words& words) {
    transfers_[words.number()].cancel();
    return "ok";
  }

  /// spoil OFFSET SIZE HOW: pages of the arena, as testing::spoil does it
  std::string spoil(Words& words) {
    const std::uint64_t offset = words.number();
    const auto pages = board_.arena().subspan(offset, words.number());
    testing::spoil(pages, static_cast<testing::Bad>(words.number()));
    return "ok";
  }

  /// mend OFFSET SIZE
  std::string mend(Words& words) {
    const std::uint64_t offset = words.number();
    board_.mend(offset, words.number());
    return "ok";
  }

  /// fork MS: a child that uses what the parent made, is told no, and lives for so long.
  std::string fork_child(Words& words) {
    const auto time = words.time();
    auto child = testing::Process::forked([&] {
      ::prctl(PR_SET_PDEATHSIG, 0);  // it may outlive its parent
      const int wrong = wrong_in_child();
      std::this_thread::sleep_for(time);
      return wrong;
    });
    if (!child) return answer_error(child);
    children_.push_back(*std::move(child));
    return "ok";
  }

  /// How many calls did not say that this process was forked.
  int wrong_in_child() {
    ::alarm(20);
    int wrong = 0;
    const auto expect_refused = [&wrong](const Status& status) {
      const bool right = !status && status.error().code == ErrorCode::kUnavailable &&
                         status.error().message.find("forked") != std::string::npos;
      wrong += right ? 0 : 1;
    };
    for (const Region& region : regions_) {
      for (const auto& [number, connection] : connections_) {
        const LocalSpan local{region.id, region.data, 4096};
        expect_refused(connection.send(local).wait(std::chrono::seconds(10)));
        for (const auto& [key, remote] : imports_) {
          if (key.first != number) continue;
          expect_refused(
              connection.write(local, {remote.region, remote.address, 4096}).wait(std::chrono::seconds(10)));
        }
      }
    }
    for (Region& region : regions_) {
      if (region.data != nullptr) expect_refused(region.handle.release(std::chrono::seconds(10)));
    }
    connections_.clear();
    return wrong;
  }

  /// children 0|1: those that have ended, or all, ended by themselves and after no wrong answer.
  std::string children(Words& words) {
    const std::chrono::milliseconds limit = words.number() == 0 ? std::chrono::seconds(0) : testing::kLimit;
    std::ostringstream bad;
    std::erase_if(children_, [&](testing::Process& child) {
      const testing::ProcessEnd end = child.wait(limit);
      if (!end.over() && limit.count() == 0) return false;
      if (end.code != 0) bad << "error system a child: " << end;
      return true;
    });
    return bad.str().empty() ? "ok" : bad.str();
  }

  /// How many channels the connections have lost.
  std::string lost() {
    std::uint64_t channels = 0;
    for (const auto& [number, connection] : connections_) channels += connection.stats().channels_lost;
    return ok(fmt::format("{}", channels));
  }

  std::string forget() {
    connections_.clear();
    imports_.clear();
    transfers_.clear();
    return "ok";
  }

  std::map<std::string, std::function<std::string(Words&)>> commands_;
  Board board_;  // until the endpoint's last callback
  Endpoint endpoint_;
  std::array<Region, Arena::kRegions> regions_;
  std::map<std::uint64_t, Connection> connections_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, RemoteSpan> imports_;
  std::map<std::uint64_t, Transfer> transfers_;
  std::vector<testing::Process> children_;
};

/// Takes lines until the world ends, and looks for notifications every other millisecond.
int work(Worker& worker) {
  std::string come;
  std::array<char, 65536> piece;
  for (;;) {
    pollfd watched{STDIN_FILENO, POLLIN, 0};
    if (::poll(&watched, 1, 2) > 0) {
      const ssize_t size = ::read(STDIN_FILENO, piece.data(), piece.size());
      if (size <= 0) return 0;
      come.append(piece.data(), static_cast<std::size_t>(size));
    }
    std::size_t done = 0;
    for (std::size_t end = 0; (end = come.find('\n', done)) != std::string::npos; done = end + 1) {
      std::cout << worker.run(come.substr(done, end - done));
    }
    come.erase(0, done);
    std::cout << worker.notes() << std::flush;
  }
}

}  // namespace
}  // namespace p2p::chaos

int main(int, char** arguments) {
  const auto options = p2p::Options::from_environment();
  if (!options) return std::fprintf(stderr, "%s\n", options.error().message.c_str()), 1;
  auto endpoint = p2p::Endpoint::create(*options);
  if (!endpoint) return std::fprintf(stderr, "%s\n", endpoint.error().message.c_str()), 1;
  p2p::chaos::Worker worker(std::move(*endpoint), arguments[1]);
  return p2p::chaos::work(worker);
}
