// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "engine/deferred.h"
#include "engine/transfer.h"
#include "engine/words.h"

namespace p2p::engine {

/// Notifications of one connection, both ways. They travel as words, in pieces, in order. Thread-safe.
class Notifications {
 public:
  explicit Notifications(std::shared_ptr<Words> words) : words_(std::move(words)) {}

  /// `state` is finished when the peer has all of it.
  void send(std::string_view payload, std::shared_ptr<TransferState> state);

  std::vector<std::string> take();

  Status on(const wire::Notify& piece);
  void on(const wire::NotifyDone& done, Deferred& deferred);

  std::uint64_t sent() const;
  std::uint64_t received() const;

  /// Sent ones that the peer has not confirmed.
  std::size_t open() const;

  void close(const Error& error);

 private:
  const std::shared_ptr<Words> words_;
  mutable Mutex mutex_;
  std::uint64_t next_ P2P_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::shared_ptr<TransferState>> open_ P2P_GUARDED_BY(mutex_);
  bool closed_ P2P_GUARDED_BY(mutex_) = false;
  Error error_ P2P_GUARDED_BY(mutex_);
  std::string coming_ P2P_GUARDED_BY(mutex_);
  std::vector<std::string> came_ P2P_GUARDED_BY(mutex_);
  std::uint64_t received_ P2P_GUARDED_BY(mutex_) = 0;
};

}  // namespace p2p::engine
