// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "p2p/options.h"
#include "p2p/result.h"
#include "p2p/weights/plan.h"

namespace p2p::weights {

/// How far a version has come. Counters are of this stage.
struct Progress {
  std::uint64_t version = 0;
  std::uint64_t bytes = 0;              ///< that have come and hash to what the publisher said
  std::uint64_t total_bytes = 0;        ///< 0: not known yet
  std::uint64_t publisher_bytes = 0;    ///< of them from the publisher itself
  std::uint64_t wrong_digests = 0;      ///< chunks that came wrong, and came again
  std::uint64_t bridged = 0;            ///< times that a lost or slow member was passed over
  std::uint64_t delta_bytes = 0;        ///< that came as deltas (`Publisher::publish`)
  std::uint64_t from_deltas = 0;        ///< of `bytes`, made of those and of the base
  std::string no_delta{};               ///< why bytes come whole though deltas are offered; empty: none do
  std::chrono::nanoseconds offered{0};  ///< from the stage's begin until somebody offered it; 0: nobody has
  std::chrono::nanoseconds joined{0};   ///< until the publisher had said that this one takes part
  std::chrono::nanoseconds first{0};    ///< until a chunk had come and its digest was right
  std::chrono::nanoseconds last{0};     ///< until the latest chunk had come, whose digest is still to be seen
  std::uint64_t given_bytes = 0;        ///< that others have taken from here, as they say
  std::chrono::nanoseconds waited{0};   ///< in which something lacked and nothing was under way
  std::string waits_for{};              ///< address and port of whom it waits for now; empty: it does not
  std::string from{};                   ///< address and port of whom chunks are taken from; empty: nobody yet
};

struct SubscriberOptions {
  Options endpoint;                     ///< of the endpoint of its own
  std::vector<std::string> publishers;  ///< "host:port" of a publisher, or of subscribers that hold a version

  /// Bytes that go from member to member at a time, at most 64 MiB; of all who want the same, equal. 0: of 4
  /// to 32 MiB.
  std::uint64_t chunk_bytes = 0;

  /// A stage that takes part fails after this long with nobody left who has what is missing. Before, it waits
  /// for somebody who offers the version.
  std::chrono::milliseconds stall{10000};
};

struct StageOptions {
  std::vector<Rename> renames;
  /// The memory is that of the committed version, which is lost if staging fails. Deltas based on it are used
  /// all the same.
  bool in_place = false;
  std::chrono::nanoseconds timeout{std::chrono::minutes(10)};
  /// Called in the calling thread when bytes have come, and a few times a second. False ends the stage with
  /// kCancelled.
  std::function<bool(const Progress&)> progress{};
};

/// Receives versions, and gives on to other subscribers what it has. Any thread, but one stage at a time.
class Subscriber {
 public:
  static Result<Subscriber> create(const SubscriberOptions& options);

  Subscriber(Subscriber&&) noexcept;
  Subscriber& operator=(Subscriber&&) noexcept;
  ~Subscriber();

  std::string address() const;
  std::uint16_t port() const;

  /// The newest version that somebody offers, once it is more than `above`; kTimedOut.
  Result<std::uint64_t> wait_version(std::optional<std::uint64_t> above,
                                     std::chrono::nanoseconds timeout) const;

  /// Receives a version into the memory of the wanted shards: that of the host or of GPUs, without gaps,
  /// which nothing that a stream still has to do may use. Waits until it is offered. When this succeeds, all
  /// bytes are there and have been checked; peers may read them until the version is dropped or its memory is
  /// staged into again. Else nothing of the version counts. kInvalidArgument: memory of the committed version
  /// without `in_place`, two publishers of one version, or shards that the publisher refuses; kPeerGone:
  /// nobody is left who has what is missing; kTimedOut.
  Status stage(std::uint64_t version, const Manifest& wanted, const StageOptions& options = {});

  /// The version that was staged last is the one in use from now on. kNotFound: none was.
  Result<std::uint64_t> commit();

  /// What was committed last, and not staged over since.
  std::optional<std::uint64_t> committed() const;

  /// Ends what peers may read of a version, as `Publisher::withdraw` does. kNotFound for one that is not
  /// here.
  Status drop(std::uint64_t version);

 private:
  class Impl;
  explicit Subscriber(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace p2p::weights
