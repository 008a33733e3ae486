// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "p2p/options.h"
#include "p2p/result.h"
#include "p2p/weights/manifest.h"

namespace p2p::weights {

/// Offers versions of a set of weights to subscribers, which connect to its address. It tells them of each
/// other, so that its own network interface carries each byte about once. Any thread.
class Publisher {
 public:
  /// Listens as `options` say, with an endpoint and a thread of its own.
  static Result<Publisher> create(const Options& options);

  Publisher(Publisher&&) noexcept;
  Publisher& operator=(Publisher&&) noexcept;
  /// Leaves: subscribers go on among themselves, if they have one whole copy between them.
  ~Publisher();

  std::string address() const;
  std::uint16_t port() const;

  /// Offers the shards of `owned`: memory of the host or of GPUs, which must stay as it is until the version
  /// is withdrawn or the publisher ends. What streams of GPUs are to write must be there by now: nothing is
  /// waited for. Peers may read these bytes and no others. kInvalidArgument: the version is there
  /// already, or shards are not what a plan takes.
  ///
  /// `base`: a version that is published here. Subscribers that hold it receive what differs from it, chunk
  /// by chunk; others, and chunks of which that is more than half, come whole. It is compared as long as it
  /// is published, when subscribers ask: its memory must be what it was. kNotFound: it is not.
  Status publish(std::uint64_t version, Manifest owned, std::optional<std::uint64_t> base = {});

  /// Ends the offer. When it returns, no peer reads memory of the host any more. That of a GPU stays mapped
  /// at peers, for a version that is published there later, until it is freed or the publisher ends; what
  /// they read of it meanwhile they take for wrong. kNotFound for an unknown version.
  Status withdraw(std::uint64_t version);

  /// How many subscribers have said that all of the version has come.
  std::size_t copies(std::uint64_t version) const;

  /// Waits until there are that many; kTimedOut.
  Status wait_copies(std::uint64_t version, std::size_t count, std::chrono::nanoseconds timeout) const;

 private:
  class Impl;
  explicit Publisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace p2p::weights
