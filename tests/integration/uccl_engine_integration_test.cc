// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/bounds.h"
#include "uccl_engine.h"

namespace p2p::testing::uccl_engine {
namespace {

using ::testing::HasSubstr;

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

/// What a call writes to standard error.
std::string told_by(const std::function<void()>& call) {
  ::testing::internal::CaptureStderr();
  call();
  return ::testing::internal::GetCapturedStderr();
}

TEST_F(UcclEngineTest, NullAndUnknownArgumentsAreErrors) {
  uccl_engine_t* const gone = uccl_engine_create(1, false);
  uccl_engine_destroy(gone);
  for (uccl_engine_t* const none : {static_cast<uccl_engine_t*>(nullptr), gone}) {
    char* metadata = nullptr;
    uccl_mr_t region = 7;
    EXPECT_EQ(uccl_engine_connect(none, "127.0.0.1", "0", 1), nullptr);
    EXPECT_EQ(uccl_engine_accept(none, nullptr, 0, nullptr), nullptr);
    EXPECT_EQ(uccl_engine_get_metadata(none, &metadata), -1);
    EXPECT_EQ(uccl_engine_reg(none, 4096, 0, region), -1);
    EXPECT_EQ(region, 7U);
    EXPECT_THAT(told_by([&] { uccl_engine_mr_destroy(none, 1); }), HasSubstr("destroy a registration"));
    EXPECT_THAT(told_by([&] { uccl_engine_stop_accept(none); }), HasSubstr("no engine"));
    EXPECT_THAT(told_by([&] { uccl_engine_destroy(none); }), HasSubstr("destroy an engine"));
  }
  const notify_msg_t message{.name = "sender", .msg = "text"};
  EXPECT_EQ(uccl_engine_connect(left, nullptr, nullptr, 1), nullptr);
  EXPECT_EQ(uccl_engine_get_metadata(left, nullptr), -1);
  EXPECT_EQ(uccl_engine_send_notif(nullptr, &message), -1);
  EXPECT_THAT(told_by([&] { uccl_engine_send_notif(out, nullptr); }), HasSubstr("message is null"));
  for (const int port : {-1, 0, 65536, 65536 + 4000}) {
    EXPECT_THAT(told_by([&] { EXPECT_EQ(uccl_engine_connect(left, "127.0.0.1", "0", port), nullptr); }),
                HasSubstr(std::to_string(port)));
  }
  EXPECT_THAT(told_by([&] { uccl_engine_mr_destroy(left, 4242); }), HasSubstr("4242 is not registered"));
  uccl_engine_conn_destroy(nullptr);
}

#if !defined(P2P_ASAN) && !defined(P2P_TSAN)  // they want their memory

// Room for nothing large: from then on no call that needs it throws.
TEST_F(UcclEngineTest, NoMemoryIsAnError) {
  const notify_msg_t message{.name = "sender", .msg = std::string(std::size_t{64} << 20, 'x')};
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit less = before;
  less.rlim_cur = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + (std::uint64_t{16} << 20);
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &less), 0);
  int sent = 0;
  const std::string told = told_by([&] { sent = uccl_engine_send_notif(out, &message); });
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(sent, -1);
  EXPECT_THAT(told, HasSubstr("send a notification: std::bad_alloc"));
  const notify_msg_t next{.name = "sender", .msg = "next"};
  EXPECT_EQ(uccl_engine_send_notif(out, &next), 4) << "the connection goes on";
}

#endif

}  // namespace
}  // namespace p2p::testing::uccl_engine
