// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "measure.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "beside.h"
#include "failure.h"
#include "layout.h"
#include "pattern.h"
#include "percentile.h"
#include "spread.h"

namespace p2p::perf {
namespace {

using Clock = std::chrono::steady_clock;

/// Transfers one by one before anything else: the first may find something that is not set up yet.
constexpr std::uint64_t kFirst = 10;

/// How long transfers run before the clock starts.
constexpr std::chrono::milliseconds kWarmUp{20};

double microseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

/// The server's region, ready for use.
Result<RemoteRegionId> import(const Connection& connection, const RegionDescriptor& descriptor) {
  const auto remote = connection.import_region(descriptor);
  if (!remote) return remote;
  const Status usable = connection.wait_imported(*remote, kPatience);
  if (!usable) return tl::unexpected(usable.error());
  return remote;
}

/// The transfers of a row, slot by slot, ready to be posted.
class Posts {
 public:
  static Result<Posts> make(const Connection& connection, const Row& row, const Buffer& buffer,
                            const RegionDescriptor& descriptor) {
    const auto remote = import(connection, descriptor);
    if (!remote) return tl::unexpected(remote.error());
    const Layout here(row, Side::kClient);
    Posts posts(connection, row, buffer.bytes(), here);
    const Layout there(row, Side::kServer);
    for (std::uint64_t slot = 0; slot < here.slots(); ++slot) {
      Slot& lists = posts.slots_.emplace_back();
      for (std::uint64_t block = 0; block < row.blocks; ++block) {
        lists.local.push_back(buffer.region().span(here.offset(slot, block), row.size));
        lists.remote.push_back({*remote, descriptor.address + there.offset(slot, block), row.size});
      }
      if (!row.prepared || (row.operation != Operation::kWrite && row.operation != Operation::kRead))
        continue;
      auto prepared = row.operation == Operation::kWrite ? connection.prepare_write(lists.local, lists.remote)
                                                         : connection.prepare_read(lists.local, lists.remote);
      if (!prepared) return tl::unexpected(prepared.error());
      lists.prepared = std::move(*prepared);
    }
    return posts;
  }

  std::uint64_t slots() const { return slots_.size(); }

  Result<Explanation> explain() const {
    return connection_.explain(slots_.front().local.front().region, slots_.front().remote.front().region);
  }

  Transfer post(std::uint64_t count) const {
    const Slot& lists = slots_[count % slots_.size()];
    if (lists.prepared.valid()) return lists.prepared.post(options_);
    switch (operation_) {
      case Operation::kWrite: return connection_.write(lists.local, lists.remote, options_);
      case Operation::kRead: return connection_.read(lists.local, lists.remote, options_);
      case Operation::kSend: return connection_.send(lists.local);
      case Operation::kNotify: break;
    }
    return connection_.notify(payload(count % slots_.size()));
  }

  /// An empty message for each receive that the server has posted ahead, or one empty notification.
  Status end(const Row& row) const {
    if (operation_ == Operation::kNotify) return connection_.notify("").wait(kTransferTime);
    if (operation_ != Operation::kSend) return {};
    LocalSpan nothing = slots_[0].local[0];
    nothing.size = 0;
    std::vector<Transfer> sends;
    sends.reserve(receives_ahead(row));
    for (std::uint64_t i = 0; i < receives_ahead(row); ++i) sends.push_back(connection_.send(nothing));
    for (const Transfer& sent : sends) {
      if (const Status done = sent.wait(kTransferTime); !done) return done;
    }
    return {};
  }

 private:
  struct Slot {
    std::vector<LocalSpan> local;
    std::vector<RemoteSpan> remote;
    PreparedTransfer prepared;
  };

  Posts(Connection connection, const Row& row, std::span<const std::byte> bytes, Layout layout)
      : connection_(std::move(connection)),
        operation_(row.operation),
        options_{.priority = row.priority, .rate = row.rate, .verify = row.digest},
        blocks_(row.blocks),
        size_(row.size),
        bytes_(bytes),
        layout_(std::move(layout)) {}

  /// A slot's blocks, one behind the other.
  std::string payload(std::uint64_t slot) const {
    std::string text;
    text.reserve(blocks_ * size_);
    for (std::uint64_t block = 0; block < blocks_; ++block) {
      text.append(reinterpret_cast<const char*>(&bytes_[layout_.offset(slot, block)]), size_);
    }
    return text;
  }

  Connection connection_;
  Operation operation_;
  PostOptions options_;
  std::uint64_t blocks_;
  std::uint64_t size_;
  std::span<const std::byte> bytes_;
  Layout layout_;
  std::vector<Slot> slots_;
};

/// Posts with a window of `depth` and waits in order.
class Window {
 public:
  /// `posted` transfers went before: a receiver goes on with the slot after theirs.
  Window(const Posts& posts, std::uint64_t depth, std::uint64_t posted = 0)
      : posts_(posts), depth_(depth), posted_(posted) {}

  std::uint64_t posted() const { return posted_; }
  std::uint64_t completed() const { return completed_; }
  std::vector<double>& latencies_us() { return latencies_us_; }
  std::vector<double>& posts_us() { return posts_us_; }
  const std::vector<Clock::time_point>& ends() const { return ends_; }

  /// Until `end` has passed and at least `least` transfers were posted; then waits for those in flight.
  Status run(Clock::time_point end, std::uint64_t least) {
    Status failed;
    const std::uint64_t enough = posted_ + least;
    while (failed && (posted_ < enough || Clock::now() < end)) {
      while (flying_.size() < depth_) post();
      failed = wait();
    }
    while (!flying_.empty()) {
      const Status one = wait();
      if (failed && !one) failed = one;
    }
    return failed;
  }

 private:
  struct Flying {
    Transfer transfer;
    Clock::time_point start;
  };

  void post() {
    const auto start = Clock::now();
    Transfer transfer = posts_.post(posted_++);
    posts_us_.push_back(microseconds(Clock::now() - start));
    flying_.push_back({std::move(transfer), start});
  }

  Status wait() {
    const Flying first = std::move(flying_.front());
    flying_.pop_front();
    const Status done = first.transfer.wait(kTransferTime);
    latencies_us_.push_back(microseconds(Clock::now() - first.start));
    completed_ += done ? 1 : 0;
    ends_.push_back(Clock::now());
    return done;
  }

  const Posts& posts_;
  std::uint64_t depth_;
  std::uint64_t posted_;
  std::uint64_t completed_ = 0;
  std::deque<Flying> flying_;
  std::vector<double> latencies_us_;
  std::vector<double> posts_us_;
  std::vector<Clock::time_point> ends_;
};

/// What a round of transfers with one pattern needs on both sides, and its check.
class Rounds {
 public:
  Rounds(Exchange& exchange, const Row& row, const Buffer& buffer)
      : exchange_(exchange), row_(row), layout_(row, Side::kClient), buffer_(buffer) {}

  Status arm(std::uint64_t seed) {
    if (row_.operation == Operation::kRead) {
      std::fill(buffer_.bytes().begin(), buffer_.bytes().end(), std::byte{});
    } else {
      layout_.fill(buffer_.bytes(), seed);
    }
    if (const Status published = buffer_.publish(); !published) return published;
    const auto reply = exchange_.call({.request = Request::kArm, .seed = seed});
    if (!reply) return tl::unexpected(reply.error());
    return {};
  }

  /// Success with a sentence if the bytes at the destination are wrong.
  Result<std::string> check(std::uint64_t seed, std::uint64_t used_slots) {
    if (row_.operation == Operation::kRead) {
      if (const Status fetched = buffer_.fetch(); !fetched) return tl::unexpected(fetched.error());
      return layout_.find_fault(buffer_.bytes(), seed, used_slots).value_or("");
    }
    const Status sent =
        exchange_.send(Ask{.request = Request::kCheck, .seed = seed, .used_slots = used_slots});
    if (!sent) return tl::unexpected(sent.error());
    auto reply = exchange_.receive_reply(kPatience);
    if (!reply) return tl::unexpected(reply.error());
    return reply->error;
  }

 private:
  Exchange& exchange_;
  const Row& row_;
  Layout layout_;
  const Buffer& buffer_;
};

/// Keeps whatever moves the bytes busy with memory that is no row's, up to the moment it returns.
Status stay_awake(const Connection& connection, const Row& row, const Buffer& mine,
                  const RegionDescriptor& theirs) {
  const auto remote = import(connection, theirs);
  if (!remote) return tl::unexpected(remote.error());
  const std::uint64_t size = std::min<std::uint64_t>(mine.region().size(), theirs.size);
  const LocalSpan here = mine.region().span(0, size);
  const RemoteSpan there{*remote, theirs.address, size};
  const bool read = row.operation == Operation::kRead;
  Status moved;
  for (const auto end = Clock::now() + kWarmUp; moved && Clock::now() < end;) {
    moved = (read ? connection.read(here, there) : connection.write(here, there)).wait(kTransferTime);
  }
  return moved;
}

/// Null for a row without.
Result<std::unique_ptr<Beside>> start_beside(Endpoint& endpoint, const std::string& memory,
                                             const Connection& connection, const Row& row,
                                             const Reply& reply) {
  if (row.beside == 0) return nullptr;
  if (!reply.spare || reply.spare->size < row.beside) {
    return fail(ErrorCode::kProtocol, "the server sent no memory for bulk transfers beside");
  }
  auto buffer = Buffer::allocate(endpoint, memory, row.beside);
  if (!buffer) return tl::unexpected(buffer.error());
  const auto remote = import(connection, *reply.spare);
  if (!remote) return tl::unexpected(remote.error());
  return std::make_unique<Beside>(connection, row, std::move(*buffer),
                                  RemoteSpan{*remote, reply.spare->address, row.beside});
}

Status transfer_timed(const Posts& posts, const Row& row, const Beside* beside, Figures& figures) {
  Window first(posts, 1);
  for (std::uint64_t i = 0; i < kFirst; ++i) {
    std::this_thread::sleep_for(row.pause);
    if (const Status moved = first.run(Clock::time_point{}, 1); !moved) return moved;
  }
  figures.first_us = first.latencies_us().front();
  figures.tenth_us = first.latencies_us().back();
  Window warm(posts, row.depth, first.posted());
  if (const Status warmed = warm.run(Clock::now() + kWarmUp, 1); !warmed) return warmed;
  Window window(posts, row.depth, warm.posted());
  const auto start = Clock::now();
  const std::uint64_t before = beside != nullptr ? beside->bytes() : 0;
  if (const Status moved = window.run(start + row.duration, posts.slots()); !moved) return moved;
  figures.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (beside != nullptr) {
    figures.beside_gbytes_per_second = static_cast<double>(beside->bytes() - before) / figures.seconds / 1e9;
  }
  figures.transfers = window.completed();
  figures.spread = spread_of(window.ends(), start, row.transfer_bytes(), row.depth);
  figures.latency_us_p50 = percentile(window.latencies_us(), 0.50);
  figures.latency_us_p99 = percentile(window.latencies_us(), 0.99);
  figures.post_us = percentile(window.posts_us(), 0.50);
  return posts.end(row);
}

/// One transfer a slot with a pattern of its own: what the timed round left behind cannot pass for it.
Status transfer_once(const Posts& posts, const Row& row) {
  Window window(posts, row.depth);
  if (const Status moved = window.run(Clock::time_point{}, posts.slots()); !moved) return moved;
  return posts.end(row);
}

}  // namespace

Result<Figures> measure(Endpoint& endpoint, const std::string& memory, const Buffer& spare,
                        Exchange& exchange, const Row& row) {
  const auto reply = exchange.call({.request = Request::kRow, .row = row});
  if (!reply) return tl::unexpected(reply.error());
  if (!reply->descriptor) return fail(ErrorCode::kProtocol, "the server sent no descriptor");
  const Layout layout(row, Side::kClient);
  if (reply->descriptor->size < Layout(row, Side::kServer).bytes()) {
    return fail(ErrorCode::kProtocol, "the server's memory is smaller than the row");
  }
  const auto buffer = Buffer::allocate(endpoint, memory, layout.bytes());
  if (!buffer) return tl::unexpected(buffer.error());
  const auto posts = Posts::make(exchange.connection(), row, *buffer, *reply->descriptor);
  if (!posts) return tl::unexpected(posts.error());

  Figures figures;
  figures.remote = reply->descriptor->place.kind;
  Rounds rounds(exchange, row, *buffer);
  for (const bool timed : {true, false}) {
    if (!timed && !row.verify) break;
    const std::uint64_t seed = mix(row.seed + (timed ? 1 : 2));
    if (const Status armed = rounds.arm(seed); !armed) return tl::unexpected(armed.error());
    if (timed && row.awake) {
      if (!reply->spare) return fail(ErrorCode::kProtocol, "the server sent no spare memory");
      const Status awake = stay_awake(exchange.connection(), row, spare, *reply->spare);
      if (!awake) return tl::unexpected(awake.error());
    }
    auto beside = start_beside(endpoint, memory, exchange.connection(), timed ? row : Row{}, *reply);
    if (!beside) return tl::unexpected(beside.error());
    Status moved = timed ? transfer_timed(*posts, row, beside->get(), figures) : transfer_once(*posts, row);
    if (*beside && moved) moved = (*beside)->stop();
    if (!moved) return tl::unexpected(moved.error());
    if (!row.verify) break;
    auto fault = rounds.check(seed, posts->slots());
    if (!fault) return tl::unexpected(fault.error());
    figures.fault = std::move(*fault);
    if (!figures.fault.empty()) break;
  }
  figures.verified = row.verify && figures.fault.empty();
  if (auto taken = posts->explain()) figures.taken = std::move(*taken);
  if (const auto ended = exchange.call({.request = Request::kEnd}); !ended) {
    return tl::unexpected(ended.error());
  }
  return figures;
}

}  // namespace p2p::perf
