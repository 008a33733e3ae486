// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/bounds.h"
#include "uccl_engine.h"

namespace p2p::testing::uccl_engine {
namespace {

/// Two engines of this process, connected.
class UcclEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(left, nullptr);
    ASSERT_NE(right, nullptr);
    char* metadata = nullptr;
    ASSERT_EQ(uccl_engine_get_metadata(right, &metadata), 0);
    const std::string text = metadata;
    delete[] metadata;
    const std::size_t colon = text.rfind(':');
    std::string host = text.substr(0, colon);
    if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
    EXPECT_EQ(text.substr(text.rfind('?')), "?0");
    out = uccl_engine_connect(left, host.c_str(), "0", std::stoi(text.substr(colon + 1)));
    ASSERT_NE(out, nullptr);
    char from[64] = {};
    int gpu = -1;
    in = uccl_engine_accept(right, from, sizeof from, &gpu);
    ASSERT_NE(in, nullptr);
    EXPECT_NE(std::string(from), "");
    EXPECT_EQ(gpu, 0);
    EXPECT_EQ(uccl_engine_start_listener(in), 0);
  }

  ~UcclEngineTest() override {
    if (out != nullptr) uccl_engine_conn_destroy(out);
    if (in != nullptr) uccl_engine_conn_destroy(in);
    if (left != nullptr) uccl_engine_destroy(left);
    if (right != nullptr) uccl_engine_destroy(right);
  }

  uccl_engine_t* left = uccl_engine_create(1, false);
  uccl_engine_t* right = uccl_engine_create(1, false);
  uccl_conn_t* out = nullptr;
  uccl_conn_t* in = nullptr;
};

TEST_F(UcclEngineTest, NotificationsOfAnyLengthComeWholeAndInOrder) {
  std::vector<std::string> sent;
  for (const std::size_t size : {0U, 5U, 305U, 4096U, 16385U, 262144U, 2U << 20}) {
    notify_msg_t message{.name = "sender", .msg = std::string(size, static_cast<char>('a' + sent.size()))};
    message.msg.append(1, '\0');
    ASSERT_EQ(uccl_engine_send_notif(out, &message), static_cast<int>(size + 1));
    sent.push_back(message.msg);
  }
  const notify_msg_t back{.name = std::string("n\0m", 3), .msg = "back"};
  ASSERT_EQ(uccl_engine_send_notif(in, &back), 4);
  // Sent means that they are there.
  std::vector<std::string> came;
  for (const notify_msg_t& message : uccl_engine_get_notifs()) {
    if (message.name == "sender") {
      came.push_back(message.msg);
    } else {
      EXPECT_EQ(message.name, back.name);
      EXPECT_EQ(message.msg, back.msg);
    }
  }
  EXPECT_EQ(came, sent);
  EXPECT_THAT(uccl_engine_get_notifs(), ::testing::IsEmpty());
}

TEST_F(UcclEngineTest, WhatCameBeforeTheEndCanStillBeTaken) {
  const notify_msg_t message{.name = "sender", .msg = "last words"};
  ASSERT_EQ(uccl_engine_send_notif(out, &message), 10);
  uccl_engine_conn_destroy(std::exchange(out, nullptr));
  uccl_engine_conn_destroy(std::exchange(in, nullptr));
  const auto came = uccl_engine_get_notifs();
  ASSERT_EQ(came.size(), 1U);
  EXPECT_EQ(came.front().msg, "last words");
}

TEST_F(UcclEngineTest, RegistersAndReleases) {
  std::vector<char> memory(4096);
  uccl_mr_t region = 0;
  ASSERT_EQ(uccl_engine_reg(left, reinterpret_cast<std::uintptr_t>(memory.data()), memory.size(), region), 0);
  EXPECT_GE(region, 1U);
  uccl_engine_mr_destroy(left, region);
  uccl_engine_mr_destroy(left, region);  // is none any more
  EXPECT_EQ(uccl_engine_reg(left, 0, 4096, region), -1);
}

TEST_F(UcclEngineTest, AcceptingEndsWhenItIsStopped) {
  std::thread stopper([&] { uccl_engine_stop_accept(right); });
  EXPECT_EQ(uccl_engine_accept(right, nullptr, 0, nullptr), nullptr);
  stopper.join();
}

TEST_F(UcclEngineTest, FailuresAreToldByTheResult) {
  EXPECT_EQ(uccl_engine_connect(left, "127.0.0.1", "0", 1), nullptr);
  EXPECT_EQ(uccl_engine_send_notif(nullptr, nullptr), -1);
}

}  // namespace
}  // namespace p2p::testing::uccl_engine
