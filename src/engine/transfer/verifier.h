// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "engine/channels/context.h"
#include "engine/request/request.h"
#include "wire/messages.h"

namespace p2p::engine {

/// Compares what was moved with the peer's memory, of transfers that want it (PostOptions::verify): digests
/// of both, and where they differ those of halves, until one range is left. While questions are on their way
/// what lands is gathered for the next one; what is asked together and cannot be compared is asked by halves,
/// so that nobody fails for another's memory. Thread-safe.
class Verifier : public std::enable_shared_from_this<Verifier> {
 public:
  Verifier(std::shared_ptr<Context> context, SendMessage send)
      : context_(std::move(context)), send_(std::move(send)) {}

  /// Of an item whose bytes are where they belong: closes it, or fails it, on any thread.
  void verify(const WorkItem& item);

  Status on(const wire::DigestAnswer& answer);

  /// A transfer was cancelled: what it has here ends as soon as this side reads no memory for it.
  void abandon();

  /// The connection ended: no more answers come.
  void close(const Error& error);

 private:
  using Pieces = std::vector<Segment>;
  using Digest = Result<std::uint64_t>;

  /// One comparison after the other, of items that end together. With one item, and more to compare than one
  /// question may name, or differences to find, `rest` is what comes after `asked`.
  struct Check {
    std::vector<WorkItem> items;
    Pieces asked;  ///< none: those of the items
    Pieces rest;
    bool differs = false;  ///< `asked` and `rest` do, as a whole
    bool shrunk = false;   ///< they have memory of items that have ended, and is not to be used
    std::optional<Digest> here;
    std::optional<Digest> there;

    /// Of what is asked about.
    struct Size {
      std::uint64_t bytes = 0;
      std::size_t pieces = 0;  ///< at most
    };
    Size size() const;

    /// Calls `visit(const Segment& piece)` for each of what is asked about.
    template <class Visitor>
    void for_each_asked(Visitor&& visit) const {
      for (const Segment& piece : asked) visit(piece);
      if (!asked.empty()) return;
      for (const WorkItem& item : items) item.batch.for_each_piece(visit);
    }
  };
  class LocalDigest;

  using Items = std::vector<WorkItem>;

  std::shared_ptr<Check> next(Items& aborted) P2P_REQUIRES(mutex_);
  void ask();
  void begin(std::uint64_t query, const std::shared_ptr<Check>& check);
  void tell(std::uint64_t query, std::optional<Digest> Check::* which, Digest digest);
  void conclude(const std::shared_ptr<Check>& check);
  static bool narrow(Check& check, Pieces pieces);
  void split(const Check& check);

  const std::shared_ptr<Context> context_;
  const SendMessage send_;

  Mutex mutex_;
  std::optional<Error> closed_ P2P_GUARDED_BY(mutex_);
  std::deque<WorkItem> landed_ P2P_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Check>> again_ P2P_GUARDED_BY(mutex_);  // before any of `landed_`
  std::unordered_map<std::uint64_t, std::shared_ptr<Check>> asked_ P2P_GUARDED_BY(mutex_);  // by query
  std::uint64_t next_query_ P2P_GUARDED_BY(mutex_) = 1;
};

}  // namespace p2p::engine
