// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Two hosts, one sends a message and the other receives it. Only who has the key gets in:
//
//     head -c 32 /dev/urandom | base64 >key && chmod 600 key     # the same file on both
//     UCCL_P2P_KEY_FILE=key send_receive receive 7000
//     UCCL_P2P_KEY_FILE=key send_receive send HOST 7000 "some text"
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string>

#include "p2p/endpoint.h"

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kLongest = 64 << 10;
constexpr auto kPatience = 60s;

p2p::Result<p2p::Endpoint> make_endpoint(std::uint16_t port) {
  auto options = p2p::Options::from_environment();
  if (!options) return tl::unexpected(options.error());
  options->port = port;
  return p2p::Endpoint::create(*options);
}

p2p::Status receive(std::uint16_t port) {
  auto endpoint = make_endpoint(port);
  if (!endpoint) return tl::unexpected(endpoint.error());
  std::cout << "listening on " << endpoint->address() << ' ' << endpoint->port() << std::endl;
  std::string text(kLongest, '\0');
  auto region = endpoint->register_memory(text.data(), text.size());
  if (!region) return tl::unexpected(region.error());
  const auto connection = endpoint->accept(kPatience);
  if (!connection) return tl::unexpected(connection.error());
  // The size is the most that may come; the transfer says how much it was.
  const p2p::Transfer transfer = connection->recv(region->span());
  if (auto status = transfer.wait(kPatience); !status) return status;
  text.resize(transfer.bytes());
  std::cout << "received from " << connection->peer().address << ": " << text << '\n';
  return connection->close(kPatience);
}

p2p::Status send(const std::string& host, std::uint16_t port, std::string text) {
  auto endpoint = make_endpoint(0);
  if (!endpoint) return tl::unexpected(endpoint.error());
  const auto connection = endpoint->connect(host, port, kPatience);
  if (!connection) return tl::unexpected(connection.error());
  auto region = endpoint->register_memory(text.data(), text.size());
  if (!region) return tl::unexpected(region.error());
  // Asked ahead of the send: who has the message may close, and a closed connection has no route.
  const std::string transport = connection->routes().front().transport;
  if (auto status = connection->send(region->span()).wait(kPatience); !status) return status;
  std::cout << "sent " << text.size() << " bytes over " << transport << '\n';
  return connection->close(kPatience);
}

std::uint16_t port_of(const char* text) { return static_cast<std::uint16_t>(std::atoi(text)); }

}  // namespace

int main(int argc, char** argv) {
  const std::span words(argv, static_cast<std::size_t>(argc));
  const std::string role = words.size() > 1 ? words[1] : "";
  p2p::Status status;
  if (role == "receive" && words.size() == 3) {
    status = receive(port_of(words[2]));
  } else if (role == "send" && words.size() == 5) {
    status = send(words[2], port_of(words[3]), words[4]);
  } else {
    std::cerr << "usage: send_receive receive PORT | send HOST PORT TEXT\n";
    return 2;
  }
  if (!status) std::cerr << status.error().message << '\n';
  return status ? 0 : 1;
}
