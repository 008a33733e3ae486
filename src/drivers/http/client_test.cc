// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/http/client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "base/unique_fd.h"
#include "support/bounds.h"

namespace p2p::http {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

class HttpClientTest : public ::testing::Test {
 protected:
  HttpClientTest() {
    std::array<int, 2> ends{-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
    client_ = UniqueFd(ends[0]);
    server_ = UniqueFd(ends[1]);
  }

  void say(std::string_view text) const {
    EXPECT_EQ(::send(server_.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }

  Result<Answer> ask(std::chrono::milliseconds patience = testing::kLimit,
                     std::uint64_t most_bytes = 1000) const {
    return post(client_.get(), {"host:1", "/v3/kv/put", "application/json", "{}"}, Clock::now() + patience,
                most_bytes);
  }

  /// What a whole answer, after which the server closes, comes to.
  std::string code_of(std::string_view answer) {
    say(answer);
    ::shutdown(server_.get(), SHUT_WR);
    const auto got = ask();
    return got ? "taken" : std::string(to_string(got.error().code));
  }

  UniqueFd client_;
  UniqueFd server_;
};

TEST_F(HttpClientTest, AsksAndReadsTheAnswer) {
  say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
  const auto answer = ask();
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 200U);
  EXPECT_EQ(answer->body, "hello");
  std::array<char, 1000> heard;
  const ssize_t size = ::recv(server_.get(), heard.data(), heard.size(), 0);
  const std::string request(heard.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  EXPECT_THAT(request, HasSubstr("POST /v3/kv/put HTTP/1.1\r\nHost: host:1\r\n"));
  EXPECT_THAT(request, HasSubstr("Content-Length: 2\r\n"));
  EXPECT_TRUE(request.ends_with("\r\n\r\n{}")) << request;
}

TEST_F(HttpClientTest, ReadsChunksAndWhatEndsWithTheConnection) {
  say("HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  const auto answer = ask();
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->status, 404U);
  EXPECT_EQ(answer->body, "abcde");
}

TEST_F(HttpClientTest, ReadsWhatEndsWithTheConnection) {
  EXPECT_EQ(code_of("HTTP/1.1 200 OK\r\n\r\nhello"), "taken");
}

TEST_F(HttpClientTest, AnAnswerThatEndsEarlyIsNone) {
  EXPECT_EQ(code_of("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello"), "peer_gone");
}

TEST_F(HttpClientTest, NoAnswerIsNone) { EXPECT_EQ(code_of(""), "peer_gone"); }

TEST_F(HttpClientTest, WhatIsNoHttpIsNone) {
  EXPECT_EQ(code_of("+OK this is a post office\r\n\r\n"), "protocol");
}

TEST_F(HttpClientTest, AnEndlessHeaderIsNone) {
  EXPECT_EQ(code_of("HTTP/1.1 200 OK\r\nA: " + std::string(20000, 'a')), "protocol");
}

TEST_F(HttpClientTest, TooLongAnAnswerIsNotRead) {
  EXPECT_EQ(code_of("HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n"), "message_too_long");
}

TEST_F(HttpClientTest, TooManyChunksAreNotRead) {
  std::string chunks = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i != 1001; ++i) chunks += "1\r\na\r\n";
  EXPECT_EQ(code_of(chunks), "message_too_long");
}

TEST_F(HttpClientTest, SilenceHasAnEnd) {
  EXPECT_EQ(ask(std::chrono::milliseconds(50)).error().code, ErrorCode::kTimedOut);
}

TEST_F(HttpClientTest, AServerThatTricklesHasNoMoreTimeThanAnother) {
  say("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
  std::thread drops([this] {  // one byte a millisecond, until nobody reads them
    pollfd reader{server_.get(), 0, 0};
    while (::send(server_.get(), "a", 1, MSG_NOSIGNAL) == 1 && ::poll(&reader, 1, 1) == 0) continue;
  });
  EXPECT_EQ(ask(std::chrono::milliseconds(100)).error().code, ErrorCode::kTimedOut);
  client_.reset();
  drops.join();
}

}  // namespace
}  // namespace p2p::http
