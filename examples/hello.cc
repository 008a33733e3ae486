// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Writes into another endpoint's memory. Both live in this process here; the calls are the same between
// machines.
#include <chrono>
#include <iostream>
#include <string>

#include "p2p/endpoint.h"

using namespace std::chrono_literals;

p2p::Status run() {
  const auto options = p2p::Options::from_environment();
  if (!options) return tl::unexpected(options.error());

  // The owner of the memory registers it and ships its 64-byte descriptor to whom it trusts.
  std::string inbox(5, '.');
  auto owner = p2p::Endpoint::create(*options);
  if (!owner) return tl::unexpected(owner.error());
  auto region = owner->register_memory(inbox.data(), inbox.size());
  if (!region) return tl::unexpected(region.error());
  const auto descriptor = region->descriptor().serialize();

  // The writer connects and writes: the owner's program takes no part in it.
  std::string text = "hello";
  auto writer = p2p::Endpoint::create(*options);
  if (!writer) return tl::unexpected(writer.error());
  auto source = writer->register_memory(text.data(), text.size());
  if (!source) return tl::unexpected(source.error());
  auto connection = writer->connect(owner->address(), owner->port());
  if (!connection) return tl::unexpected(connection.error());
  const auto target = p2p::RegionDescriptor::parse(descriptor);
  if (!target) return tl::unexpected(target.error());
  const auto remote = connection->import_region(*target);
  if (!remote) return tl::unexpected(remote.error());
  const p2p::Transfer transfer = connection->write(source->span(), {*remote, target->address, text.size()});
  if (auto status = transfer.wait(5s); !status) return status;
  std::cout << inbox << " by " << connection->routes().front().transport << '\n';
  return {};
}

int main() {
  const p2p::Status status = run();
  if (!status) std::cerr << status.error().message << '\n';
  return status ? 0 : 1;
}
