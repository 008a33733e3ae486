// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "conformance/pair.h"

#include <array>
#include <string_view>

#include "support/devices.h"

namespace p2p::conformance {

Options options() {
  const Result<Options> read = Options::from_environment();
  EXPECT_TRUE(read) << read.error().message;
  Options options = read.value_or(Options{});
  // There is no session here which would say sooner that the peer's process has ended.
  options.hung = options.keepalive;
  return options;
}

ChannelSetup session_of(Role role) {
  constexpr Incarnation kConnector = 0x1111;
  constexpr Incarnation kAcceptor = 0x2222;
  const bool connects = role == Role::kConnector;
  ChannelSetup setup{.role = role,
                     .local_incarnation = connects ? kConnector : kAcceptor,
                     .peer_incarnation = connects ? kAcceptor : kConnector};
  setup.secret.fill(std::byte{0x77});
  return setup;
}

Pair::Pair(const TransportRegistry::Entry& entry)
    : left(entry.make(options(), test_devices(options()))),
      right(entry.make(options(), test_devices(options()))) {
  left.set_twin(right);
  right.set_twin(left);
}

// Both are closed before either goes, since each delivers the other's control messages.
Pair::~Pair() {
  left.close();
  right.close();
}

Status Pair::connect(const ChannelSetup& left_setup, const ChannelSetup& right_setup) {
  const auto to_left = [this](std::uint32_t channel, Bytes bytes) {
    left.deliver(channel, std::move(bytes));
  };
  const auto to_right = [this](std::uint32_t channel, Bytes bytes) {
    right.deliver(channel, std::move(bytes));
  };
  // In the order of a session: offer, answer, and only then can the connector dial.
  if (const Status opened = left.open(left_setup, to_right); !opened) return opened;
  if (const Status opened = right.open(right_setup, to_left); !opened) return opened;
  if (const Status met = right.connect(left.addresses()); !met) return met;
  if (const Status met = left.connect(right.addresses()); !met) return met;
  if (const Status ready = left.wait_ready(); !ready) return ready;
  return right.wait_ready();
}

Segment segment(const Memory& local, std::size_t offset, const RemoteKey& key, std::uint64_t remote,
                std::size_t size) {
  return {local.data() + offset, remote, size, local.registration(), &key};
}

void Conformance::SetUp() {
  constexpr std::array<std::string_view, 3> kAlways{"loopback", "cma", "tcp"};
  const auto transport = GetParam().make(options(), test_devices(options()));
  EXPECT_EQ(transport->name(), GetParam().name);
  capabilities_ = transport->capabilities();
  const Status usable = transport->probe();
  if (usable && transport->carries({}, {})) return;
  if (usable) GTEST_SKIP() << "it carries no host memory; its own tests move device memory";
  ASSERT_EQ(std::ranges::find(kAlways, GetParam().name), kAlways.end()) << usable.error().message;
  GTEST_SKIP() << usable.error().message;
}

std::unique_ptr<Pair> Conformance::connected() {
  auto pair = std::make_unique<Pair>(GetParam());
  const Status status = pair->connect();
  EXPECT_TRUE(status) << status.error().message;
  return pair;
}

}  // namespace p2p::conformance
