// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// nccl_net_loop_bench PLUGIN [MESSAGE_BYTES [BLOCK_BYTES]]: what a net plugin moves between two processes
// without an engine. Each side has one comm and nothing else to do; 64 MiB of registered memory are sent over
// and over, in messages that lie one behind the other, as many under way as a comm takes. With BLOCK_BYTES
// both sides copy each message, block by block in shuffled order, as a plugin that takes one address a
// message asks of scattered memory. Prints GB/s of payload, and in which share of its time each side copies.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "drivers/nccl_net/window.h"

namespace p2p::nccl_net {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kBytes = std::size_t{64} << 20;
constexpr std::chrono::seconds kTime{1};

[[noreturn]] void stop(const std::string& why) {
  fmt::print(stderr, "nccl_net_loop_bench: {}\n", why);
  std::exit(1);
}

template <class T>
T must(Result<T> result) {
  if (!result) stop(result.error().message);
  return std::move(*result);
}

struct Shape {
  std::string plugin;
  std::size_t message = std::size_t{512} << 10;
  std::size_t block = 0;
};

std::byte* map(std::size_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) stop("no memory");
  std::memset(at, 1, bytes);
  return static_cast<std::byte*>(at);
}

/// One side's memory, and what its messages are copied from or to.
class Side {
 public:
  Side(const Shape& shape, const std::shared_ptr<Comm>& comm, unsigned seed)
      : shape_(shape),
        memory_(must(register_with(comm, data_, kBytes, abi::kPointerHost))),
        staging_(must(register_with(comm, slots_, kMaxRequests * shape.message, abi::kPointerHost))) {
    if (shape_.block == 0) return;
    blocks_.resize(kBytes / shape_.block);
    std::iota(blocks_.begin(), blocks_.end(), std::size_t{0});
    std::ranges::shuffle(blocks_, std::mt19937(seed));
  }

  std::byte* message(std::uint64_t number) const {
    if (shape_.block == 0) return data_ + number * shape_.message % kBytes;
    return slots_ + number % kMaxRequests * shape_.message;
  }
  const MemoryHandle& handle() const { return shape_.block == 0 ? memory_ : staging_; }

  void copy(std::uint64_t number, bool out) {
    if (shape_.block == 0) return;
    const auto start = Clock::now();
    std::byte* slot = message(number);
    for (std::size_t index = 0; index != shape_.message / shape_.block; ++index, slot += shape_.block) {
      std::byte* const block = data_ + blocks_[next_++ % blocks_.size()] * shape_.block;
      std::memcpy(out ? block : slot, out ? slot : block, shape_.block);
    }
    copying_ += Clock::now() - start;
  }
  double copying() const { return std::chrono::duration<double>(copying_).count(); }

 private:
  const Shape& shape_;
  std::byte* data_ = map(kBytes);
  std::byte* slots_ = map(kMaxRequests * shape_.message);
  MemoryHandle memory_;
  MemoryHandle staging_;
  std::vector<std::size_t> blocks_;
  std::size_t next_ = 0;
  Clock::duration copying_{0};
};

void receive(const Shape& shape, int socket) {
  auto plugin = must(Plugin::open(shape.plugin));
  auto listener = must(Listener::open(plugin, must(plugin->devices()).front()));
  if (::write(socket, &listener.handle(), sizeof(Handle)) != sizeof(Handle)) stop("no handle sent");
  std::optional<RecvComm> comm;
  while (!comm) comm = must(listener.poll());
  if (comm->unpack) stop("a device that receives in place is wanted");
  Side side(shape, comm->comm, 1);
  ReceiveWindow window(*comm);
  std::uint64_t posted = 0, taken = 0;
  double elapsed = 0;
  for (Clock::time_point start{};;) {
    while (!window.full() && must(window.post(side.message(posted), shape.message, side.handle()))) ++posted;
    const auto arrival = window.poll();
    if (!arrival) break;  // the sender has gone
    if (!*arrival) continue;
    if (taken == 0) start = Clock::now();
    side.copy(taken++, true);
    if (auto consumed = window.consume(); !consumed) break;
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  }
  const double bytes = static_cast<double>(taken - 1) * static_cast<double>(shape.message);
  fmt::print("{{\"GB/s\": {:.2f}, \"receiver copies\": {:.2f}, ", bytes / elapsed / 1e9,
             side.copying() / elapsed);
  std::fflush(stdout);
}

/// Its share of copying. Closes the comm.
double send(const Shape& shape, int socket) {
  Handle handle{};
  if (::recv(socket, &handle, sizeof handle, MSG_WAITALL) != sizeof handle) stop("no handle came");
  auto plugin = must(Plugin::open(shape.plugin));
  Connector connector(plugin, must(plugin->devices()).front(), handle);
  std::optional<SendComm> comm;
  while (!comm) comm = must(connector.poll());
  Side side(shape, comm->comm, 2);
  SendWindow window(*comm);
  std::uint64_t placed = 0;
  const auto start = Clock::now();
  while (Clock::now() < start + kTime) {
    if (!window.full()) {
      if (placed == window.posted()) side.copy(placed++, false);
      must(window.post(side.message(placed - 1), shape.message, side.handle()));
      continue;
    }
    must(window.poll());
  }
  while (!window.empty()) must(window.poll());
  return side.copying() / std::chrono::duration<double>(Clock::now() - start).count();
}

int run(int count, char** arguments) {
  if (count < 2) stop("give the plugin's path");
  Shape shape{.plugin = arguments[1]};
  if (count > 2) shape.message = std::strtoull(arguments[2], nullptr, 0);
  if (count > 3) shape.block = std::strtoull(arguments[3], nullptr, 0);
  if (shape.message == 0 || kBytes % shape.message != 0) stop("a message is to divide 64 MiB");
  if (shape.block != 0 && shape.message % shape.block != 0) stop("a block is to divide a message");
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) stop("no pair of sockets");
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    receive(shape, ends[1]);
    std::exit(0);
  }
  ::close(ends[1]);
  const double copying = send(shape, ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  fmt::print("\"sender copies\": {:.2f}}}\n", copying);
  return status;
}

}  // namespace
}  // namespace p2p::nccl_net

int main(int count, char** arguments) { return p2p::nccl_net::run(count, arguments); }
