// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "drivers/socket/poll_set.h"
#include "drivers/socket/socket.h"
#include "support/devices.h"
#include "transport/tcp/connect/acceptor.h"
#include "transport/tcp/connect/connector.h"
#include "transport/tcp/stream/descriptors.h"
#include "transport/tcp/tcp.h"

namespace {

using namespace p2p;

// At an address that seeds can name: half of it is registered, the rest is not to be touched.
constexpr std::uint64_t kAddress = 0x10000000;
constexpr std::size_t kRegistered = 32768;
constexpr std::size_t kMapped = 2 * kRegistered;

std::byte* memory() {
  static void* const mapped = ::mmap(reinterpret_cast<void*>(kAddress), kMapped, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (mapped == MAP_FAILED) std::abort();
  return static_cast<std::byte*>(mapped);
}

void check_descriptors(ByteView bytes, std::uint64_t total) {
  tcp::RangeList list;
  if (!tcp::decode_ranges(bytes, total, list)) return;
  Bytes encoded;
  tcp::encode_ranges(list, encoded);
  tcp::RangeList again;
  if (!tcp::decode_ranges(encoded, total, again) || again.ranges != list.ranges) std::abort();
}

// An acceptor's channel that has a write and a read under way, and its peer, whose bytes are the input.
class Stream {
 public:
  Stream() : transport_(tcp::make({}, test_devices())) {
    const RegionInfo info{.id = RegionId{1}, .base = memory(), .size = kRegistered};
    registration_ = transport_->register_memory(info).value();
    key_ = transport_->import_region(info, {}).value();
    channel_ =
        transport_
            ->open_channel(
                {.role = Role::kAcceptor, .rail = {"lo", "127.0.0.1"}, .path = {"127.0.0.1", "127.0.0.1"}})
            .value();
    socket::PollSet polls = socket::PollSet::open().value();
    tcp::Connector connector =
        tcp::Connector::dial(socket::Address::parse("127.0.0.1", 0).value(),
                             tcp::ChannelAddress::decode(channel_->address()).value(), {}, polls)
            .value();
    while (channel_->state() == ChannelState::kConnecting) {
      if (!peer_) peer_ = std::move(connector.advance().value());
      channel_->progress(completions_);
    }
    segments_ = {{local_, kAddress, sizeof local_, registration_.get(), key_.get()}};
    for (const Operation operation : {Operation::kWrite, Operation::kRead}) {
      if (!channel_->post({.id = static_cast<BatchId>(operation),
                           .operation = operation,
                           .segments = segments_,
                           .bytes = sizeof local_})) {
        std::abort();
      }
    }
  }

  ~Stream() { socket::discard_at_close(peer_.get()); }

  void feed(ByteView bytes) {
    (void)socket::try_send(peer_.get(), bytes);
    channel_->progress(completions_);
  }

  // Nothing is left under way once the peer is gone, and each batch has ended once.
  void finish() {
    socket::discard_at_close(peer_.get());
    peer_.reset();
    while (channel_->state() != ChannelState::kFailed) channel_->progress(completions_);
    channel_->progress(completions_);
    if (completions_.size() != 2) std::abort();
  }

 private:
  std::byte local_[64] = {};
  std::unique_ptr<Transport> transport_;
  std::shared_ptr<Registration> registration_;
  std::unique_ptr<RemoteKey> key_;
  std::vector<Segment> segments_;
  std::unique_ptr<Channel> channel_;
  UniqueFd peer_;
  std::vector<Completion> completions_;
};

}  // namespace

/// The first byte chooses the size of the pieces in which the rest reaches the channel.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const ByteView bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  check_descriptors(bytes, data[0] * std::uint64_t{64});

  std::fill_n(memory(), kMapped, std::byte{0});
  Stream stream;
  const std::size_t step = data[0] == 0 ? size : data[0];
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    stream.feed(bytes.subspan(at, std::min(step, bytes.size() - at)));
  }
  stream.finish();
  const std::byte* const outside = memory() + kRegistered;
  if (std::any_of(outside, outside + kRegistered, [](std::byte byte) { return byte != std::byte{0}; })) {
    std::abort();
  }
  return 0;
}
