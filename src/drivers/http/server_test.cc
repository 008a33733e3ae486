// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/http/server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace p2p::http {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::unique_ptr<Server> start(unsigned most_clients = 16,
                              std::chrono::milliseconds patience = std::chrono::seconds(30)) {
  auto server = Server::start(
      {.place = "127.0.0.1:0", .most_clients = most_clients, .patience = patience},
      [](const Request& request) { return Reply{200, "text/plain", request.path + "|" + request.accept}; });
  EXPECT_TRUE(server) << server.error().message;
  return std::move(*server);
}

UniqueFd dial(const Server& server) {
  const std::string& place = server.place();
  UniqueFd socket = UniqueFd::of(::socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port =
      htons(static_cast<std::uint16_t>(std::strtoul(place.c_str() + place.rfind(':') + 1, nullptr, 10)));
  ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  const timeval limit{20, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return socket;
}

void say(const UniqueFd& socket, std::string_view text) {
  EXPECT_EQ(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

/// All that comes until the server closes.
std::string hear(const UniqueFd& socket) {
  std::string all;
  char part[4096];
  ssize_t got = 0;
  while ((got = ::recv(socket.get(), part, sizeof part, 0)) > 0)
    all.append(part, static_cast<std::size_t>(got));
  EXPECT_EQ(got, 0) << "not closed";
  return all;
}

std::string ask(const Server& server, std::string_view text) {
  const UniqueFd socket = dial(server);
  say(socket, text);
  return hear(socket);
}

TEST(HttpServerTest, AnswersWhatItsHandlerSays) {
  const auto server = start();
  const std::string answer =
      ask(*server, "GET /metrics?a=b HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain\r\n"));
  EXPECT_TRUE(answer.ends_with("\r\n\r\n/metrics|text/plain")) << answer;
}

TEST(HttpServerTest, HeadHasNoBody) {
  const auto server = start();
  const std::string answer = ask(*server, "HEAD /abc HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Length: 5\r\n"));
  EXPECT_TRUE(answer.ends_with("\r\n\r\n")) << answer;
}

TEST(HttpServerTest, OtherMethodsAreRefused) {
  const auto server = start();
  EXPECT_THAT(ask(*server, "DELETE / HTTP/1.1\r\nHost: x\r\n\r\n"), StartsWith("HTTP/1.1 405"));
}

TEST(HttpServerTest, WhatIsNoRequestOrTooLongIsCutOff) {
  const auto server = start();
  EXPECT_EQ(ask(*server, "\x16\x03\x01 no http\r\n\r\n"), "");
  EXPECT_THAT(ask(*server, "GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  const UniqueFd socket = dial(*server);
  say(socket, "GET / HTTP/1.1\r\nA: " + std::string(7000, 'a'));
  ::send(socket.get(), std::string(7000, 'b').data(), 7000, MSG_NOSIGNAL);
  char byte = 0;
  EXPECT_LE(::recv(socket.get(), &byte, 1, 0), 0);
}

TEST(HttpServerTest, OneMoreTakesThePlaceOfTheOldest) {
  const auto server = start(2);
  const UniqueFd first = dial(*server);
  const UniqueFd second = dial(*server);
  EXPECT_THAT(ask(*server, "GET /third HTTP/1.1\r\n\r\n"), HasSubstr("/third"));
  EXPECT_EQ(hear(first), "");
  say(second, "GET /second HTTP/1.1\r\n\r\n");
  EXPECT_THAT(hear(second), HasSubstr("/second"));
}

TEST(HttpServerTest, SlowClientsStarveNobody) {
  const auto server = start();
  std::vector<UniqueFd> slow;
  for (int i = 0; i != 64; ++i) {
    slow.push_back(dial(*server));
    say(slow.back(), "GET /slow");
  }
  EXPECT_THAT(ask(*server, "GET /page HTTP/1.1\r\n\r\n"), HasSubstr("/page"));
}

TEST(HttpServerTest, OneThatSaysNothingIsCutOff) {
  const auto server = start(1, std::chrono::milliseconds(50));
  EXPECT_EQ(hear(dial(*server)), "");
}

TEST(HttpServerTest, EndsWithClientsThere) {
  auto server = start();
  const UniqueFd silent = dial(*server);
  EXPECT_THAT(ask(*server, "GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  server.reset();
  char byte = 0;
  EXPECT_LE(::recv(silent.get(), &byte, 1, 0), 0);
}

TEST(HttpServerTest, RefusesPlacesThatAreNoneOrThatOthersReach) {
  const auto code = [](const char* place, bool anybody = false) {
    const auto server = Server::start({.place = place, .anybody = anybody}, nullptr);
    return server ? std::string("served") : std::string(to_string(server.error().code));
  };
  for (const char* place : {"", "9400", ":9400", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536",
                            "127.0.0.1:80 ", "example:80", "[::1:80"}) {
    EXPECT_EQ(code(place), "invalid_argument") << place;
  }
  EXPECT_EQ(code("0.0.0.0:0"), "permission_denied");
  EXPECT_EQ(code("[::]:0"), "permission_denied");
  EXPECT_EQ(code("192.0.2.1:0"), "permission_denied");
  EXPECT_EQ(code("0.0.0.0:0", true), "served");
  EXPECT_EQ(code("localhost:0"), "served");
  const auto server = start();
  EXPECT_EQ(code(server->place().c_str()), "system");
}

}  // namespace
}  // namespace p2p::http
