// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What our own code costs for each receive of a net plugin: two channels in one thread over a plugin that
// moves nothing. On the receiving side that is the announcement, the post, the list of 128 fragments planned
// into the final block, the copies (of 4 KiB in all) and the way back; on the sending side the rest.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "device/service.h"
#include "transport/nccl_net/nccl_net.h"
#include "transport/transport.h"

namespace p2p::nccl_net {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kChunk = 4096;
constexpr std::size_t kChunks = 256;

class Link final : public ControlLink {
 public:
  void send(std::span<const std::byte> message) override {
    sent.emplace_back(message.begin(), message.end());
  }
  std::deque<std::vector<std::byte>> sent;
};

void insist(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "nccl_net_receive_bench: %s\n", what);
  std::abort();
}

struct End {
  std::unique_ptr<Transport> transport;
  Link link;
  std::unique_ptr<Channel> channel;
  std::vector<Completion> completions;
  std::chrono::nanoseconds spent{0};

  void open(Role role) {
    Options options;
    options.nccl_net.plugin = COUNTING_PLUGIN;
    options.nccl_net.host_pool = true;
    options.nccl_net.chunk_bytes = kChunk;
    transport = make(options, std::make_shared<device::Service>(options));
    ChannelSetup setup{.role = role, .rail = transport->rails({}).front(), .control = &link};
    auto opened = transport->open_channel(setup);
    insist(opened.has_value(), "no channel");
    channel = std::move(*opened);
  }
  void step(End& from) {
    const auto start = Clock::now();
    for (; !from.link.sent.empty(); from.link.sent.pop_front()) {
      insist(channel->on_control(from.link.sent.front()).has_value(), "a message was refused");
    }
    channel->progress(completions);
    spent += Clock::now() - start;
  }
};

void receive(benchmark::State& state) {
  End left, right;
  left.open(Role::kConnector);
  right.open(Role::kAcceptor);
  insist(left.channel->connect(right.channel->address()) && right.channel->connect(left.channel->address()),
         "not connected");
  while (left.channel->state() != ChannelState::kReady || right.channel->state() != ChannelState::kReady) {
    left.step(right);
    right.step(left);
  }
  std::vector<std::byte> from(kChunks * kChunk), to(kChunks * kChunk);
  const RegionInfo source{.id = RegionId{1}, .base = from.data(), .size = from.size()};
  const RegionInfo target{.id = RegionId{1}, .base = to.data(), .size = to.size()};
  const auto registration = left.transport->register_memory(source);
  const auto registered = right.transport->register_memory(target);
  const auto key = left.transport->import_region(target, {});
  insist(registration && registered && key, "no memory");
  const Segment segment{from.data(), reinterpret_cast<std::uint64_t>(to.data()), from.size(),
                        registration->get(), key->get()};
  left.spent = right.spent = {};
  for ([[maybe_unused]] auto _ : state) {
    insist(left.channel->post({.id = BatchId{1}, .segments = {&segment, 1}, .bytes = from.size()}), "full");
    while (left.completions.empty()) {
      left.step(right);
      right.step(left);
    }
    insist(left.completions[0].status.has_value(), "a write failed");
    left.completions.clear();
  }
  const auto receives = static_cast<double>(state.iterations()) * kChunks;
  const auto each = [&](const End& end) {
    return std::chrono::duration<double, std::micro>(end.spent).count() / receives;
  };
  state.counters["receiver_us_each"] = each(right);
  state.counters["sender_us_each"] = each(left);
}
BENCHMARK(receive)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace p2p::nccl_net

BENCHMARK_MAIN();
