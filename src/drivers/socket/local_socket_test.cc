// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/local_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>

#include "p2p/result.h"

namespace p2p::socket {
namespace {

using namespace std::chrono_literals;

Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

class LocalSocket : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = "p2p-local-socket-test-" + std::to_string(::getpid());
    listener_ = listen_locally(name).value();
    EXPECT_FALSE(accept_local(listener_));
    left_ = connect_locally(name).value();
    right_ = accept_local(listener_);
    ASSERT_TRUE(right_);
  }

  static std::vector<UniqueFd> pipes(std::size_t count) {
    std::vector<UniqueFd> ends;
    for (std::size_t i = 0; i < count; ++i) {
      int both[2];
      EXPECT_EQ(::pipe2(both, O_CLOEXEC), 0);
      EXPECT_EQ(::write(both[1], &i, sizeof i), ssize_t{sizeof i});
      ends.emplace_back(both[0]);
      ::close(both[1]);
    }
    return ends;
  }

  Listener listener_;
  UniqueFd left_;
  UniqueFd right_;
};

TEST_F(LocalSocket, CarriesBytesAndDescriptorsInOrder) {
  const auto sent = pipes(40);
  ASSERT_TRUE(send_packet(left_, as_bytes("first"), sent, in(1s)));
  ASSERT_TRUE(send_packet(left_, as_bytes("second"), {}, in(1s)));
  auto packet = receive_packet(right_, 100, 40, in(1s));
  ASSERT_TRUE(packet) << packet.error().message;
  EXPECT_EQ(to_string(packet->bytes), "first");
  ASSERT_EQ(packet->descriptors.size(), 40U);
  for (std::size_t i = 0; i < 40; ++i) {
    std::size_t told = 99;
    EXPECT_EQ(::read(packet->descriptors[i].get(), &told, sizeof told), ssize_t{sizeof told});
    EXPECT_EQ(told, i);
  }
  EXPECT_EQ(to_string(receive_packet(right_, 100, 0, in(1s)).value().bytes), "second");
}

TEST_F(LocalSocket, RefusesWhatWasNotAskedFor) {
  ASSERT_TRUE(send_packet(left_, as_bytes("too long"), {}, in(1s)));
  EXPECT_EQ(receive_packet(right_, 7, 0, in(1s)).error().code, ErrorCode::kProtocol);
  ASSERT_TRUE(send_packet(left_, as_bytes("too many"), pipes(2), in(1s)));
  EXPECT_EQ(receive_packet(right_, 100, 1, in(1s)).error().code, ErrorCode::kProtocol);
  EXPECT_EQ(send_packet(left_, as_bytes("x"), pipes(kMaxDescriptors + 1), in(1s)).error().code,
            ErrorCode::kInvalidArgument);
}

TEST_F(LocalSocket, WaitsNoLongerThanAsked) {
  EXPECT_EQ(receive_packet(right_, 100, 0, in(20ms)).error().code, ErrorCode::kTimedOut);
  const Bytes packet(4096);
  Status status;
  for (int i = 0; status && i < 100'000; ++i) status = send_packet(left_, packet, {}, in(20ms));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kTimedOut);
}

TEST_F(LocalSocket, TellsThatTheOtherSideHasClosed) {
  left_.reset();
  EXPECT_EQ(receive_packet(right_, 100, 0, in(1s)).error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(send_packet(right_, as_bytes("x"), {}, in(1s)).error().code, ErrorCode::kPeerGone);
}

// It closes with a packet of ours unread: Linux resets the connection then.
TEST_F(LocalSocket, WhatCameBeforeAResetIsReceived) {
  ASSERT_TRUE(send_packet(right_, as_bytes("never read"), {}, in(1s)));
  ASSERT_TRUE(send_packet(left_, as_bytes("last words"), {}, in(1s)));
  left_.reset();
  const auto packet = receive_packet(right_, 100, 0, in(1s));
  ASSERT_TRUE(packet) << packet.error().message;
  EXPECT_EQ(to_string(packet->bytes), "last words");
  EXPECT_EQ(receive_packet(right_, 100, 0, in(1s)).error().code, ErrorCode::kPeerGone);
}

TEST_F(LocalSocket, ManyWaitToBeAccepted) {
  const std::string name = "p2p-local-socket-queue-" + std::to_string(::getpid());
  const Listener busy = listen_locally(name).value();
  std::vector<UniqueFd> callers;
  for (int i = 0; i != 200; ++i) {
    auto caller = connect_locally(name);
    ASSERT_TRUE(caller) << "caller " << i << ": " << caller.error().message;
    callers.push_back(*std::move(caller));
  }
}

TEST_F(LocalSocket, ATokenMakesAName) {
  EXPECT_EQ(local_name("p2p-", Bytes{std::byte{0x0a}, std::byte{0xff}}), "p2p-0aff");
}

TEST_F(LocalSocket, NobodyListens) {
  const auto none = connect_locally("p2p-local-socket-test-nobody");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kPeerGone);
  EXPECT_NE(none.error().message.find("network namespace"), std::string::npos) << none.error().message;
}

TEST_F(LocalSocket, KnowsWhoConnectedAndByWhichName) {
  const std::string there = "p2p-local-socket-test-names-" + std::to_string(::getpid());
  const auto listener = listen_locally(there);
  ASSERT_TRUE(listener);
  for (const std::string& name : {std::string(), there + "-caller"}) {
    const auto caller = connect_locally(there, name);
    ASSERT_TRUE(caller) << caller.error().message;
    const UniqueFd accepted = accept_local(*listener);
    ASSERT_TRUE(accepted);
    EXPECT_EQ(name_at(accepted), name);
    EXPECT_EQ(name_at(*caller), there);
    for (const UniqueFd* const end : {&*caller, &accepted}) {
      EXPECT_EQ(process_at(*end), ::getpid());
      EXPECT_TRUE(watch_process(*end));
    }
    EXPECT_TRUE(name.empty() || !connect_locally(there, name)) << "it is taken";
  }
}

}  // namespace
}  // namespace p2p::socket
