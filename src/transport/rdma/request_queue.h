// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "drivers/verbs/chain.h"
#include "transport/batch.h"
#include "transport/rdma/link.h"

namespace p2p::rdma {

/// The batches of a channel on their way: cut into requests, posted as far as the window has room, ended in
/// order. Batches of which the end is not known when a link breaks are posted again, from their start, to the
/// next one: writing or reading the same bytes twice does no harm. Part of its channel.
class RequestQueue {
 public:
  /// Which keys count on this path, and where flushing reads put their byte.
  struct Ends {
    std::size_t local_device = 0;
    std::size_t remote_device = 0;
    std::byte* scratch = nullptr;
    std::uint32_t scratch_key = 0;
  };

  void set_ends(const Ends& ends) { ends_ = ends; }

  /// False: full. What is wrong with a batch is its completion.
  bool accept(const Batch& batch);

  /// Posts what there is room for; an error leaves the link unusable.
  Status pump(Link& link);

  /// Posts a request that only asks whether the peer's device still answers.
  Status probe(Link& link);

  /// Request `id` and all before it are done.
  void done_until(std::uint64_t id);

  /// Request `id` failed, and will again.
  void fail(std::uint64_t id, const Error& error);

  /// The link is gone: nothing is outstanding.
  void rewind();

  /// Ends all batches.
  void fail_all(const Error& error);

  void abandon(BatchId id);

  /// Appends the batches that ended; true if there were any.
  bool take(std::vector<Completion>& completions);

  /// Requests that the device has not reported yet.
  unsigned outstanding() const { return static_cast<unsigned>(next_id_ - done_id_); }
  bool empty() const { return works_.empty(); }

  /// There are ends to report.
  bool busy() const { return !ended_.empty(); }

 private:
  struct Work {
    Batch batch;
    std::size_t segment = 0;   // the first not wholly in requests yet
    std::uint64_t offset = 0;  // in it
    std::uint64_t left = 0;    // bytes
    std::uint64_t first_id = 0;
    std::uint64_t last_id = 0;
    std::optional<verbs::Extent> flush;  // a read that comes after the last write
    std::optional<Error> error;
    bool started = false;
    bool posted = false;  // all of it
  };

  Status check(const Batch& batch) const;
  void fill(verbs::Chain& chain, unsigned room);
  bool add(Work& work, verbs::Chain& chain, unsigned room) const;
  void restart(Work& work) const;
  void end(std::size_t index);

  Ends ends_;
  std::deque<Work> works_;
  std::size_t next_ = 0;       // in works_: the first that is not wholly posted
  std::uint64_t bytes_ = 0;    // of works_
  std::uint64_t next_id_ = 1;  // of the next request
  std::uint64_t done_id_ = 1;  // all before are done
  std::vector<Completion> ended_;
};

}  // namespace p2p::rdma
