// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The C interface, driven as a program in C would.
#include "tcpx/interface.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

namespace {

template <class Step>
bool until(Step&& step) {
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
       std::chrono::steady_clock::now() < end;) {
    if (step()) return true;
    std::this_thread::yield();
  }
  return false;
}

TEST(Interface, CarriesAMessage) {
  ASSERT_EQ(tcpx_load_plugin(SOFTNET_PATH), 0) << tcpx_last_error();
  ASSERT_EQ(tcpx_get_device_count(), 1);
  tcpx_properties properties;
  ASSERT_EQ(tcpx_get_properties(0, &properties), 0);
  EXPECT_STREQ(properties.name, "lo");
  EXPECT_EQ(tcpx_get_properties(1, &properties), -1);
  EXPECT_STRNE(tcpx_last_error(), "");

  alignas(8) char handle[TCPX_HANDLE_BYTES];
  void *listener = nullptr, *send = nullptr, *receive = nullptr, *device_handle = nullptr;
  ASSERT_EQ(tcpx_listen(0, handle, &listener), 0);
  ASSERT_TRUE(until([&] {
    const int connected = send == nullptr ? tcpx_connect_v5(0, handle, &send, nullptr) : 0;
    const int accepted = receive == nullptr ? tcpx_accept_v5(listener, &receive, &device_handle) : 0;
    EXPECT_EQ(connected, 0);
    EXPECT_EQ(accepted, 0);
    return send != nullptr && receive != nullptr;
  }));
  EXPECT_NE(device_handle, nullptr);

  char from[] = "Hello from TCPX client!";
  char to[sizeof from] = {};
  void *source = nullptr, *target = nullptr, *sent = nullptr, *received = nullptr;
  ASSERT_EQ(tcpx_reg_mr(send, from, sizeof from, TCPX_PTR_HOST, &source), 0);
  ASSERT_EQ(tcpx_reg_mr(receive, to, sizeof to, TCPX_PTR_HOST, &target), 0);
  void* data = to;
  int size = sizeof to;
  ASSERT_EQ(tcpx_isend(send, from, sizeof from, 1, source, &sent), 0);
  ASSERT_EQ(tcpx_irecv(receive, 1, &data, &size, nullptr, &target, &received), 0);
  EXPECT_EQ(tcpx_irecv(receive, 2, &data, &size, nullptr, &target, &received), -1);
  bool send_done = false, receive_done = false;
  ASSERT_TRUE(until([&] {
    int done = 0;
    if (!send_done) {
      EXPECT_EQ(tcpx_test(sent, &done, nullptr), 0);
      send_done = done != 0;
    }
    if (!receive_done) {
      EXPECT_EQ(tcpx_test(received, &done, nullptr), 0);
      receive_done = done != 0;
    }
    return send_done && receive_done;
  }));
  EXPECT_STREQ(to, from);
  void* flushed = &to;
  EXPECT_EQ(tcpx_iflush(receive, 1, &data, &size, &target, &flushed), 0);
  EXPECT_EQ(flushed, nullptr) << "nothing to wait for";
  EXPECT_EQ(tcpx_iflush(receive, 2, &data, &size, &target, &flushed), -1);
  EXPECT_EQ(tcpx_irecv_consumed(receive, 1, received), 0);
  EXPECT_EQ(tcpx_dereg_mr(send, source), 0);
  EXPECT_EQ(tcpx_dereg_mr(receive, target), 0);
  EXPECT_EQ(tcpx_close_send(send), 0);
  EXPECT_EQ(tcpx_close_recv(receive), 0);
  EXPECT_EQ(tcpx_close_listen(listener), 0);
}

TEST(Interface, SaysWhyAPluginDoesNotLoad) {
  EXPECT_EQ(tcpx_load_plugin("/nowhere/libnccl-net.so"), -1);
  EXPECT_NE(std::strstr(tcpx_last_error(), "/nowhere/libnccl-net.so"), nullptr);
  void* request = nullptr;
  EXPECT_NE(tcpx_test(nullptr, nullptr, nullptr), 0);
  EXPECT_NE(tcpx_isend(nullptr, nullptr, 1, 0, nullptr, &request), 0);
}

}  // namespace
