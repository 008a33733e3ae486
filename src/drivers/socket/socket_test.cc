// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/socket.h"

#include <gmock/gmock.h>
#include <linux/filter.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "drivers/socket/interfaces.h"
#include "drivers/socket/poll_set.h"
#include "drivers/socket/round_trip.h"
#include "support/lonely_host.h"

namespace p2p::socket {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Address loopback(std::uint16_t port = 0) { return *Address::parse("127.0.0.1", port); }

bool wait_for(const PollSet& set, int timeout_ms = 5000) {
  epoll_event event{};
  return ::epoll_wait(set.fd(), &event, 1, timeout_ms) == 1;
}

struct Connected {
  UniqueFd dialled;
  UniqueFd accepted;
};

Connected connect_pair(const Address& address) {
  Connected pair;
  const UniqueFd listener = *open_listener(address, 4);
  PollSet set = *PollSet::open();
  EXPECT_TRUE(set.add(listener.get(), EPOLLIN));
  pair.dialled = *start_dial(address, *local_address(listener.get()));
  EXPECT_TRUE(wait_for(set));
  pair.accepted = *try_accept(listener.get());
  EXPECT_TRUE(pair.accepted);
  EXPECT_TRUE(dial_finished(pair.dialled.get()).value_or(false));
  return pair;
}

TEST(Address, KeepsTextAndPort) {
  const Address four = *Address::parse("10.1.2.3", 77);
  EXPECT_EQ(four.describe(), "10.1.2.3:77");
  const Address six = *Address::parse("fd00::1", 78);
  EXPECT_EQ(six.describe(), "[fd00::1]:78");
  EXPECT_FALSE(four.is_loopback());
  EXPECT_TRUE(Address::parse("127.9.9.9", 0)->is_loopback());
  EXPECT_TRUE(Address::parse("::1", 0)->is_loopback());
}

TEST(Address, TakesMappedIpv4ForIpv4) {
  const Address mapped = *Address::parse("::ffff:10.1.2.3", 77);
  EXPECT_EQ(mapped.family(), AF_INET);
  EXPECT_EQ(mapped.describe(), "10.1.2.3:77");
  EXPECT_TRUE(mapped.same_host(*Address::parse("10.1.2.3", 1)));
}

TEST(Address, ComparesHostsOnly) {
  EXPECT_TRUE(Address::parse("10.1.2.3", 1)->same_host(*Address::parse("10.1.2.3", 2)));
  EXPECT_FALSE(Address::parse("10.1.2.3", 1)->same_host(*Address::parse("10.1.2.4", 1)));
  EXPECT_FALSE(Address::parse("::1", 1)->same_host(*Address::parse("127.0.0.1", 1)));
}

TEST(Address, RefusesNames) {
  for (const char* text :
       {"localhost", "1.2.3.4.5", "host.invalid", "1.2.3.4:", "10.7", "fe80::1%nosuchlink"}) {
    const Result<Address> address = Address::parse(text, 0);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(address.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Address, MayNameItsPort) {
  EXPECT_EQ(Address::parse("1.2.3.4:80", 0)->describe(), "1.2.3.4:80");
  EXPECT_EQ(Address::parse("[::1]:80", 80)->describe(), "[::1]:80");
  EXPECT_FALSE(Address::parse("1.2.3.4:80", 81));
}

TEST(Address, OfALinkNeedsTheLink) {
  EXPECT_TRUE(Address::parse("fe80::1%lo", 0)->check_scope());
  EXPECT_TRUE(Address::parse("fd00::1", 0)->check_scope());
  const Status without = Address::parse("fe80::1", 0)->check_scope();
  ASSERT_FALSE(without);
  EXPECT_THAT(without.error().message, ::testing::HasSubstr("fe80::1%eth0"));
}

TEST(Interfaces, HaveLoopbackAndKnowTheirOwn) {
  const auto found = interfaces();
  ASSERT_TRUE(found);
  EXPECT_THAT(*found, ::testing::Contains(::testing::Field(&Interface::loopback, true)));
  for (const Interface& mine : *found) EXPECT_TRUE(is_local(mine.address)) << mine.name;
  EXPECT_FALSE(is_local(*Address::parse("192.0.2.1", 0)));
  EXPECT_EQ(link_speed("../../etc"), 0U);
  EXPECT_EQ(link_speed("no-such-interface"), 0U);
}

TEST(Interfaces, APairOfContainersHasNoSpeed) {
  const std::string name = "p2pt" + std::to_string(::getpid() % 1'000'000);
  if (std::system(("ip link add " + name + " type veth peer name " + name + "b 2>&1").c_str()) != 0) {
    GTEST_SKIP() << "no pairs can be made here";
  }
  for (const char* const end : {"", "b"}) {
    EXPECT_EQ(std::system(("ip link set " + name + end + " up").c_str()), 0);
  }
  EXPECT_EQ(link_speed(name), 0U);
  EXPECT_EQ(std::system(("ip link delete " + name).c_str()), 0);
}

TEST(Socket, MovesBytesAndSeesTheEnd) {
  Connected pair = connect_pair(loopback());
  ASSERT_TRUE(tune_stream(pair.dialled.get(), {.user_timeout = milliseconds(3000), .buffer_bytes = 1 << 20}));
  std::array<std::byte, 16> buffer{};
  Result<Moved> moved = try_receive(pair.accepted.get(), buffer);
  ASSERT_TRUE(moved);
  EXPECT_TRUE(moved->blocked);
  EXPECT_FALSE(moved->ended);

  const std::array<std::byte, 4> sent{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  ASSERT_EQ(try_send(pair.dialled.get(), sent)->bytes, 4U);
  EXPECT_TRUE(readable_now(pair.accepted.get()));
  moved = try_receive(pair.accepted.get(), buffer);
  EXPECT_EQ(moved->bytes, 4U);
  EXPECT_EQ(buffer[3], std::byte{4});

  ASSERT_TRUE(tune_stream(pair.dialled.get(), {.keepalive = milliseconds(3000)}));
  EXPECT_FALSE(answers_of(pair.dialled.get())->awaited);
  EXPECT_FALSE(answers_of(pair.dialled.get())->waiting);

  pair.dialled.reset();
  PollSet set = *PollSet::open();
  ASSERT_TRUE(set.add(pair.accepted.get(), EPOLLIN));
  ASSERT_TRUE(wait_for(set));
  EXPECT_TRUE(try_receive(pair.accepted.get(), buffer)->ended);
}

// A peer that does not read is asked now and then whether it has room, and its kernel answers.
TEST(Socket, AFullWindowWaitsWithoutAnAnswerBeingOwed) {
  Connected pair = connect_pair(loopback());
  const std::vector<std::byte> bytes(std::size_t{1} << 20);
  while (!try_send(pair.dialled.get(), bytes)->blocked) {
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  Answers answers;
  do {
    answers = answers_of(pair.dialled.get()).value();
  } while ((answers.awaited || !answers.waiting) && std::chrono::steady_clock::now() < deadline);
  EXPECT_FALSE(answers.awaited);
  EXPECT_TRUE(answers.waiting);
}

// Segments of over 1000 bytes are lost before the socket sees them.
void lose_long_segments(int fd) {
  std::array<sock_filter, 4> program{{BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
                                      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 1000, 0, 1),
                                      BPF_STMT(BPF_RET | BPF_K, 0), BPF_STMT(BPF_RET | BPF_K, 0xffffffff)}};
  const sock_fprog filter{program.size(), program.data()};
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter), 0);
}

// Something was lost and what was sent after it answered, and then there is no route to send it again.
TEST(Socket, WhatCannotLeaveAgainIsNotAnswered) {
  p2p::testing::LonelyHost::run([] {
    Connected pair = connect_pair(loopback());
    ASSERT_TRUE(tune_stream(pair.dialled.get(), {}));
    lose_long_segments(pair.accepted.get());
    const std::vector<std::byte> bytes(1200);
    ASSERT_EQ(try_send(pair.dialled.get(), bytes)->bytes, bytes.size());
    ASSERT_EQ(try_send(pair.dialled.get(), std::span(bytes).first(100))->bytes, 100U);
    ASSERT_TRUE(p2p::testing::LonelyHost::lose_routes());
    const auto deadline = steady_clock::now() + std::chrono::seconds(20);
    Answers answers;
    do {
      answers = answers_of(pair.dialled.get()).value();
    } while (!answers.awaited && steady_clock::now() < deadline);
    EXPECT_TRUE(answers.awaited);
    EXPECT_TRUE(answers.waiting);
  });
}

TEST(Socket, TakesNoMoreThanMayWait) {
  const Connected pair = connect_pair(loopback());
  const std::vector<std::byte> bytes(std::size_t{1} << 20);
  const auto fill = [&] {  // the peer reads nothing
    while (::send(pair.dialled.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
    int unsent = 0;
    EXPECT_EQ(::ioctl(pair.dialled.get(), SIOCOUTQNSD, &unsent), 0);
    return unsent;
  };
  // What the peer's kernel takes is on its way; the rest waits, up to the bound and what the kernel fills at
  // once.
  limit_unsent(pair.dialled.get(), 32 << 10);
  const int unsent = fill();
  EXPECT_GT(unsent, 0);
  EXPECT_LE(unsent, (32 << 10) + (64 << 10));
  limit_unsent(pair.dialled.get(), 512 << 10);
  EXPECT_GT(fill(), unsent);
}

TEST(Socket, LowWaterHoldsBackReadiness) {
  Connected pair = connect_pair(loopback());
  set_receive_low_water(pair.accepted.get(), 8);
  const std::array<std::byte, 4> part{};
  ASSERT_TRUE(try_send(pair.dialled.get(), part));
  EXPECT_FALSE(readable_now(pair.accepted.get()));
  ASSERT_TRUE(try_send(pair.dialled.get(), part));
  EXPECT_TRUE(readable_now(pair.accepted.get()));
}

TEST(Socket, IsPacedAsTheSystemSaysUnlessItStaysWithinTheHost) {
  Connected pair = connect_pair(loopback());
  const int fd = pair.dialled.get();
  const std::string usual = congestion_control(fd);
  EXPECT_NE(usual, "");
  ASSERT_TRUE(tune_stream(fd, {}));
  EXPECT_EQ(congestion_control(fd), usual);
  ASSERT_TRUE(tune_stream(fd, {.within_host = true}));
  EXPECT_EQ(congestion_control(fd), "reno");
}

TEST(Socket, TellsWhyADialFailed) {
  UniqueFd listener = *open_listener(loopback(), 1);
  const Address gone = *local_address(listener.get());
  listener.reset();
  const Result<UniqueFd> fd = start_dial(loopback(), gone);
  if (!fd) return;  // refused at once
  PollSet set = *PollSet::open();
  ASSERT_TRUE(set.add(fd->get(), EPOLLOUT));
  ASSERT_TRUE(wait_for(set));
  EXPECT_FALSE(dial_finished(fd->get()));
}

TEST(Socket, WorksOverIpv6) {
  const Address six = *Address::parse("::1", 0);
  if (!open_listener(six, 1)) GTEST_SKIP() << "no IPv6 here";
  Connected pair = connect_pair(six);
  EXPECT_EQ(peer_address(pair.dialled.get())->text(), "::1");
}

TEST(Socket, ReportsZerocopySends) {
  Connected pair = connect_pair(loopback());
  if (!allow_zerocopy(pair.dialled.get())) GTEST_SKIP() << "no SO_ZEROCOPY here";
  EXPECT_EQ(next_zerocopy_range(pair.dialled.get())->count, 0U);
  std::vector<std::byte> bytes(64 << 10);
  iovec piece{bytes.data(), bytes.size()};
  const Result<Moved> moved = try_send(pair.dialled.get(), std::span(&piece, 1), MSG_ZEROCOPY);
  ASSERT_TRUE(moved);
  ASSERT_TRUE(moved->zerocopy);
  std::vector<std::byte> into(bytes.size());
  const auto deadline = steady_clock::now() + std::chrono::seconds(5);
  ZerocopyRange range;
  while (range.count == 0 && steady_clock::now() < deadline) {
    ASSERT_TRUE(try_receive(pair.accepted.get(), into));
    range = *next_zerocopy_range(pair.dialled.get());
  }
  EXPECT_EQ(range.first, 0U);
  EXPECT_EQ(range.count, 1U);
  EXPECT_TRUE(range.copied);  // as always on loopback
}

TEST(PollSet, AlarmMakesItReadable) {
  PollSet set = *PollSet::open();
  EXPECT_FALSE(wait_for(set, 0));
  set.set_alarm(steady_clock::now() + milliseconds(10));
  EXPECT_TRUE(wait_for(set));
  set.clear_alarm();
  EXPECT_FALSE(wait_for(set, 0));
  set.set_alarm(steady_clock::time_point());
  EXPECT_TRUE(wait_for(set));
}

}  // namespace
}  // namespace p2p::socket
