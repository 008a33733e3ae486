// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "p2p/result.h"
#include "transport/batch.h"
#include "transport/cma/rings.h"
#include "transport/cma/shared_files.h"
#include "transport/peer_access.h"

namespace p2p::cma {

/// How one channel, whose peer's memory is out of reach, asks for files in memory and gives them, and copies
/// to and from what is mapped of them. Used by the thread that has the channel.
class FileExchange {
 public:
  /// `regions`: those of this side, which the peer may have. `rings` and `socket` are the channel's.
  FileExchange(PeerAccess regions, Rings& rings, const UniqueFd& socket)
      : regions_(std::move(regions)), rings_(rings), socket_(socket) {}

  /// All of the peer's memory that the batch names is mapped. Asks for a file that is missing.
  bool maps(const Batch& batch);

  /// Of a batch that `maps`; `staged`: here its bytes lie back to back from there on. An error names memory
  /// here that turned out bad.
  static Status copy(const Batch& batch, std::byte* staged);

  /// Nothing for a message that is not about files. kProtocol: the peer did what it must not.
  std::optional<Status> take(ByteView message);

  /// An answer waits for room.
  bool has_answer() const { return answer_.has_value(); }

  /// As Rings::ask.
  Result<bool> send_answer();

  /// There will be no more answers.
  void end() { question_.reset(); }

 private:
  void ask_for(const std::shared_ptr<PeerMapping>& mapping);
  bool give(const WantFile& want) const;

  const PeerAccess regions_;
  Rings& rings_;
  const UniqueFd& socket_;
  std::optional<FileQuestion> question_;  ///< that the peer has yet to answer
  std::optional<FileAnswer> answer_;
};

}  // namespace p2p::cma
