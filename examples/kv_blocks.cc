// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The blocks of a KV cache from one host to another, each to another place, by a list that is checked once
// and then posted for every layer:
//
//     kv_blocks decode 7000            # has the memory
//     kv_blocks prefill HOST 7000      # writes into it; decode takes no part
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "p2p/endpoint.h"

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kBlocks = 4096;
constexpr std::size_t kBlockBytes = 16 << 10;
constexpr int kLayers = 4;
constexpr auto kPatience = 60s;

/// Where a block goes: the two sides have given their blocks out in different orders.
std::size_t place_of(std::size_t block) { return (block * 2657 + 11) % kBlocks; }
char content_of(std::size_t block, int layer) { return static_cast<char>('A' + (block + layer) % 26); }

p2p::Result<p2p::Endpoint> make_endpoint(std::uint16_t port) {
  auto options = p2p::Options::from_environment();
  if (!options) return tl::unexpected(options.error());
  options->port = port;
  return p2p::Endpoint::create(*options);
}

p2p::Status decode(std::uint16_t port) {
  auto endpoint = make_endpoint(port);
  if (!endpoint) return tl::unexpected(endpoint.error());
  std::cout << "listening on " << endpoint->address() << ' ' << endpoint->port() << std::endl;
  std::vector<char> cache(kBlocks * kBlockBytes);
  auto region = endpoint->register_memory(cache.data(), cache.size());
  if (!region) return tl::unexpected(region.error());
  const auto connection = endpoint->accept(kPatience);
  if (!connection) return tl::unexpected(connection.error());

  // The descriptor names the whole region; prefill finds the blocks in it by itself.
  auto descriptor = region->descriptor().serialize();
  auto ticket = endpoint->register_memory(descriptor.data(), descriptor.size());
  if (!ticket) return tl::unexpected(ticket.error());
  if (auto status = connection->send(ticket->span()).wait(kPatience); !status) return status;

  // Prefill says when the last layer is there.
  int layers = 0;
  auto word = endpoint->register_memory(&layers, sizeof layers);
  if (!word) return tl::unexpected(word.error());
  if (auto status = connection->recv(word->span()).wait(kPatience); !status) return status;
  std::size_t right = 0;
  for (std::size_t block = 0; block < kBlocks; ++block) {
    const auto first = cache.begin() + static_cast<std::ptrdiff_t>(place_of(block) * kBlockBytes);
    const char wanted = content_of(block, layers - 1);
    right += std::all_of(first, first + kBlockBytes, [wanted](char byte) { return byte == wanted; }) ? 1 : 0;
  }
  std::cout << right << " of " << kBlocks << " blocks are right after " << layers << " layers\n";
  return connection->close(kPatience);
}

p2p::Result<p2p::RemoteSpan> receive_target(p2p::Endpoint& endpoint, const p2p::Connection& connection) {
  std::vector<std::byte> bytes(p2p::RegionDescriptor::kBytes);
  auto ticket = endpoint.register_memory(bytes.data(), bytes.size());
  if (!ticket) return tl::unexpected(ticket.error());
  if (auto status = connection.recv(ticket->span()).wait(kPatience); !status) {
    return tl::unexpected(status.error());
  }
  const auto descriptor = p2p::RegionDescriptor::parse(bytes);
  if (!descriptor) return tl::unexpected(descriptor.error());
  const auto region = connection.import_region(*descriptor);
  if (!region) return tl::unexpected(region.error());
  return p2p::RemoteSpan{.region = *region, .address = descriptor->address, .size = descriptor->size};
}

p2p::Status prefill(const std::string& host, std::uint16_t port) {
  auto endpoint = make_endpoint(0);
  if (!endpoint) return tl::unexpected(endpoint.error());
  const auto connection = endpoint->connect(host, port, kPatience);
  if (!connection) return tl::unexpected(connection.error());
  std::vector<char> cache(kBlocks * kBlockBytes);
  auto region = endpoint->register_memory(cache.data(), cache.size());
  if (!region) return tl::unexpected(region.error());
  const auto target = receive_target(*endpoint, *connection);
  if (!target) return tl::unexpected(target.error());

  std::vector<p2p::LocalSpan> mine;
  std::vector<p2p::RemoteSpan> theirs;
  for (std::size_t block = 0; block < kBlocks; ++block) {
    mine.push_back(region->span(block * kBlockBytes, kBlockBytes));
    theirs.push_back({target->region, target->address + place_of(block) * kBlockBytes, kBlockBytes});
  }
  const auto list = connection->prepare_write(mine, theirs);
  if (!list) return tl::unexpected(list.error());
  const auto start = std::chrono::steady_clock::now();
  for (int layer = 0; layer < kLayers; ++layer) {
    for (std::size_t block = 0; block < kBlocks; ++block) {
      std::memset(cache.data() + block * kBlockBytes, content_of(block, layer), kBlockBytes);
    }
    if (auto status = list->post().wait(kPatience); !status) return status;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::cout << kLayers << " layers of " << kBlocks << " blocks over "
            << connection->routes().front().transport << " in " << took.count() << " s\n";

  int layers = kLayers;
  auto word = endpoint->register_memory(&layers, sizeof layers);
  if (!word) return tl::unexpected(word.error());
  if (auto status = connection->send(word->span()).wait(kPatience); !status) return status;
  return connection->close(kPatience);
}

std::uint16_t port_of(const char* text) { return static_cast<std::uint16_t>(std::atoi(text)); }

}  // namespace

int main(int argc, char** argv) {
  const std::span words(argv, static_cast<std::size_t>(argc));
  const std::string role = words.size() > 1 ? words[1] : "";
  p2p::Status status;
  if (role == "decode" && words.size() == 3) {
    status = decode(port_of(words[2]));
  } else if (role == "prefill" && words.size() == 4) {
    status = prefill(words[2], port_of(words[3]));
  } else {
    std::cerr << "usage: kv_blocks decode PORT | prefill HOST PORT\n";
    return 2;
  }
  if (!status) std::cerr << status.error().message << '\n';
  return status ? 0 : 1;
}
