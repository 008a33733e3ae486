// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/transfer/verifier.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/block_digest.h"
#include "base/error.h"
#include "base/memory_guard.h"
#include "base/underlying.h"
#include "base/wire_code.h"

namespace p2p::engine {
namespace {

using Pieces = std::vector<Segment>;

// Of host memory a question is about so much, or about one item: as many threads hash as there are questions.
constexpr std::uint64_t kMostOfHost = std::uint64_t{4} << 20;

bool on_host(const Batch& batch) {
  return batch.segments.empty() ||
         batch.segments.front().registration->info().place.kind == MemoryKind::kHost;
}

std::uint64_t bytes_of(std::span<const Segment> pieces) {
  std::uint64_t bytes = 0;
  for (const Segment& piece : pieces) bytes += piece.size;
  return bytes;
}

/// Cuts off the pieces behind the first `bytes`, and behind the first `count`.
Pieces cut_behind(Pieces& pieces, std::uint64_t bytes, std::size_t count) {
  std::size_t whole = 0;
  while (whole < std::min(count, pieces.size()) && pieces[whole].size <= bytes) bytes -= pieces[whole++].size;
  Pieces behind(pieces.begin() + static_cast<std::ptrdiff_t>(whole), pieces.end());
  pieces.resize(whole);
  if (behind.empty() || bytes == 0 || whole == count) return behind;
  Segment& first = behind.front();
  pieces.push_back(first);
  pieces.back().size = bytes;
  first.local += bytes;
  first.remote += bytes;
  first.size -= bytes;
  return behind;
}

Pieces cut_to_one_query(Pieces& pieces) {
  return cut_behind(pieces, wire::kMostDigestBytes, wire::kMostDigestRanges);
}

Pieces pieces_of(std::span<const WorkItem> items) {
  std::size_t count = 0;
  for (const WorkItem& item : items) count += item.batch.pieces();
  Pieces pieces;
  pieces.reserve(count);
  for (const WorkItem& item : items) {
    item.batch.for_each_piece([&](const Segment& piece) { pieces.push_back(piece); });
  }
  return pieces;
}

/// Lists the ranges at the peer of pieces that it is called with, one after the other.
class QueryList {
 public:
  QueryList(std::uint64_t number, std::size_t most)
      : query_{.query = number, .regions = {}, .runs = {}, .addresses = {}} {
    query_.addresses.reserve(most);
  }

  void operator()(const Segment& piece) {
    if (piece.key != last_) {
      last_ = piece.key;
      const auto [found, is_new] = places_.try_emplace(last_, static_cast<std::uint32_t>(places_.size()));
      if (is_new) query_.regions.push_back({to_underlying(last_->info().id), last_->info().key});
      place_ = found->second;
    }
    if (query_.runs.empty() || query_.runs.back().region != place_ || query_.runs.back().size != piece.size) {
      query_.runs.push_back({.region = place_, .size = piece.size});
    }
    ++query_.runs.back().ranges;
    query_.addresses.push_back(piece.remote);
  }

  wire::DigestQuery take() { return std::move(query_); }

 private:
  wire::DigestQuery query_;
  std::unordered_map<const RemoteKey*, std::uint32_t> places_;
  const RemoteKey* last_ = nullptr;
  std::uint32_t place_ = 0;
};

Error mismatch(const WorkItem& item, const Segment& piece) {
  const bool write = item.batch.operation == Operation::kWrite;
  const RegionInfo& here = piece.registration->info();
  return {
      ErrorCode::kDataMismatch,
      fmt::format("verify a {} of {} bytes: {} bytes at {:#x} of the peer's region {} are not those at {}, "
                  "byte {} of region {} here: the transfer did not move them as they were, or somebody "
                  "has written to either since",
                  write ? "write" : "read", item.request->list().bytes, piece.size, piece.remote,
                  to_underlying(piece.key->info().id), fmt::ptr(piece.local), piece.local - here.base,
                  to_underlying(here.id))};
}

void end(std::span<const WorkItem> items, const Status& status) {
  PostUnlockActions actions;
  for (WorkItem item : items) {
    if (status) {
      item.close(actions);
    } else {
      item.fail(status.error(), actions);
    }
  }
  actions.run();
}

void drop(std::span<const WorkItem> items) {
  PostUnlockActions actions;
  for (WorkItem item : items) item.drop(actions);
  actions.run();
}

bool is_aborted(const WorkItem& item) { return item.request->aborted(); }

/// Those of transfers that have failed or were cancelled. True: there are some.
bool take_aborted(auto& items, std::vector<WorkItem>& aborted) {
  // Asked once: a transfer may be cancelled meanwhile.
  const auto is_taken = [&](const WorkItem& item) {
    if (!is_aborted(item)) return false;
    aborted.push_back(item);
    return true;
  };
  return std::erase_if(items, is_taken) != 0;
}

}  // namespace

/// The question, and the digest of memory here, which some thread computes. It is told even if none does.
class Verifier::LocalDigest {
 public:
  LocalDigest(std::shared_ptr<Verifier> verifier, std::uint64_t query, std::shared_ptr<Check> check)
      : verifier_(std::move(verifier)), query_(query), check_(std::move(check)) {}
  ~LocalDigest() {
    if (told_) return;
    tell(fail(ErrorCode::kCancelled, "verify a transfer: the endpoint was closed"));
    verifier_->ask();
  }
  LocalDigest(const LocalDigest&) = delete;
  LocalDigest& operator=(const LocalDigest&) = delete;

  /// The peer computes its digest meanwhile.
  void ask() {
    guard_memory(
        "a question about what was moved", [this] { ask_now(); },
        [this] {
          const Digest failed = fail(ErrorCode::kSystem, "verify a transfer: {}", kOutOfMemory);
          verifier_->tell(query_, &Check::there, failed);
          tell(failed);
        });
  }

  /// Then there may be room for another question: whoever calls asks it.
  void compute() {
    if (told_) return;
    guard_memory(
        "a digest of what was moved", [this] { tell(digest()); },
        [this] { tell(fail(ErrorCode::kSystem, "verify a transfer: {}", kOutOfMemory)); });
  }

 private:
  // The list of memory here is made once the question has left, since the peer has no use for it.
  void ask_now() {
    Check::Size size = check_->size();
    if (check_->asked.empty() &&
        (size.bytes > wire::kMostDigestBytes || size.pieces > wire::kMostDigestRanges)) {
      check_->asked = pieces_of(check_->items);
      check_->rest = cut_to_one_query(check_->asked);
      size = check_->size();
    }
    QueryList list(query_, size.pieces);
    check_->for_each_asked(list);
    verifier_->send_(list.take());
  }

  Digest digest() {
    AliveCheck alive;
    std::vector<Digests::Range> ranges;
    ranges.reserve(check_->size().pieces);
    check_->for_each_asked([&](const Segment& piece) {
      alive.ask(piece.registration);
      ranges.push_back({{piece.local, piece.size}, piece.registration->info().place});
    });
    if (!alive.status) return tl::unexpected(alive.status.error());
    return verifier_->context_->digest(ranges);
  }

  void tell(Digest digest) {
    told_ = true;
    verifier_->tell(query_, &Check::here, std::move(digest));
  }

  const std::shared_ptr<Verifier> verifier_;
  const std::uint64_t query_;
  const std::shared_ptr<Check> check_;  // nobody else changes what is asked before this is told
  bool told_ = false;
};

Verifier::Check::Size Verifier::Check::size() const {
  if (!asked.empty()) return {bytes_of(asked), asked.size()};
  Size size;
  for (const WorkItem& item : items) {
    size.bytes += item.batch.bytes;
    size.pieces += item.batch.pieces();
  }
  return size;
}

void Verifier::verify(const WorkItem& item) {
  std::optional<Error> closed;
  {
    MutexLock lock(mutex_);
    closed = closed_;
    if (!closed) landed_.push_back(item);
  }
  if (closed) return end(std::span(&item, 1), tl::unexpected(std::move(*closed)));
  if (is_aborted(item)) abandon();  // just now
  ask();
}

std::shared_ptr<Verifier::Check> Verifier::next(Items& aborted) {
  std::shared_ptr<Check> check;
  if (closed_ || asked_.size() >= wire::kMostDigestQueries) return check;
  while (!again_.empty()) {
    check = std::move(again_.front());
    again_.pop_front();
    if (!std::ranges::all_of(check->items, is_aborted)) return check;
    std::ranges::move(std::exchange(check, nullptr)->items, std::back_inserter(aborted));
  }
  std::uint64_t bytes = 0;
  std::size_t pieces = 0;
  while (!landed_.empty()) {
    if (is_aborted(landed_.front())) {
      aborted.push_back(std::move(landed_.front()));
      landed_.pop_front();
      continue;
    }
    const Batch& batch = landed_.front().batch;
    const std::uint64_t most = on_host(batch) ? kMostOfHost : wire::kMostDigestBytes;
    bytes += batch.bytes;
    pieces += batch.pieces();
    if (!check) {
      check = std::make_shared<Check>();
    } else if (bytes > most || pieces > wire::kMostDigestRanges) {
      break;
    }
    check->items.push_back(std::move(landed_.front()));
    landed_.pop_front();
  }
  return check;
}

void Verifier::ask() {
  for (;;) {
    std::uint64_t query = 0;
    std::shared_ptr<Check> check;
    Items aborted;
    {
      MutexLock lock(mutex_);
      check = next(aborted);
      if (check) {
        query = next_query_++;
        check->here.reset();
        check->there.reset();
        asked_.emplace(query, check);
      }
    }
    drop(aborted);
    if (!check) return;
    begin(query, check);
  }
}

// Whoever calls may be the thread that copies: of much he does not even list what is asked.
void Verifier::begin(std::uint64_t query, const std::shared_ptr<Check>& check) {
  const auto digest = std::make_shared<LocalDigest>(shared_from_this(), query, check);
  const auto compute = [self = shared_from_this(), digest] {
    digest->compute();
    self->ask();
  };
  const auto all = [digest, compute] {
    digest->ask();
    compute();
  };
  if (check->size().bytes > kDigestedAtOnce && context_->digesting.post(all)) return;
  bool all_on_host = true;  // looked at first: with the answer the items may be gone
  check->for_each_asked([&](const Segment& piece) {
    all_on_host = all_on_host && piece.registration->info().place.kind == MemoryKind::kHost;
  });
  digest->ask();
  if (all_on_host || !context_->digesting.post(compute)) digest->compute();
}

Status Verifier::on(const wire::DigestAnswer& answer) {
  {
    MutexLock lock(mutex_);
    const auto asked = asked_.find(answer.query);
    if (asked == asked_.end() || asked->second->there) {
      return fail(ErrorCode::kProtocol, "an answer about a digest that was not asked for");
    }
  }
  Digest digest = answer.digest;
  if (answer.error != 0) {
    digest = fail(code_from_wire(answer.error), "verify a transfer: the owner of the memory says: {}",
                  answer.message.text());
  }
  tell(answer.query, &Check::there, std::move(digest));
  ask();
  return {};
}

// The answers that are to come keep their places: the peer may have no more questions at a time.
void Verifier::abandon() {
  Items aborted;
  {
    MutexLock lock(mutex_);
    take_aborted(landed_, aborted);
    for (const auto& check : again_) {
      if (take_aborted(check->items, aborted)) *check = Check{.items = std::move(check->items)};
    }
    std::erase_if(again_, [](const auto& check) { return check->items.empty(); });
    for (const auto& [query, check] : asked_) {
      if (check->here && take_aborted(check->items, aborted)) check->shrunk = true;
    }
  }
  drop(aborted);
}

// The last one of both concludes. It does not ask on: `ask` calls this, of any number of questions.
void Verifier::tell(std::uint64_t query, std::optional<Digest> Check::* which, Digest digest) {
  std::shared_ptr<Check> check;
  Items aborted;
  {
    MutexLock lock(mutex_);
    const auto asked = asked_.find(query);
    if (asked == asked_.end() || (*asked->second).*which) return;
    check = asked->second;
    (*check).*which = std::move(digest);
    if (check->here && take_aborted(check->items, aborted)) check->shrunk = true;
    if (check->here && check->there) {
      asked_.erase(asked);
    } else {
      check = nullptr;
    }
  }
  drop(aborted);
  if (check) conclude(check);
}

void Verifier::conclude(const std::shared_ptr<Check>& check) {
  const bool known = *check->here && *check->there;
  const bool equal = known && **check->here == **check->there;
  if (check->items.empty() || (equal && check->rest.empty())) return end(check->items, {});
  if (!equal && (check->items.size() > 1 || check->shrunk)) return split(*check);
  if (!known) return end(check->items, tl::unexpected((*check->here ? *check->there : *check->here).error()));
  bool more = true;
  if (!equal) {
    more = narrow(*check, check->asked.empty() ? pieces_of(check->items) : std::exchange(check->asked, {}));
  } else if (check->differs) {
    more = narrow(*check, std::exchange(check->rest, {}));
  } else {
    check->asked = std::move(check->rest);
    check->rest = cut_to_one_query(check->asked);
  }
  if (!more) return end(check->items, tl::unexpected(mismatch(check->items.front(), check->asked.front())));
  std::optional<Error> closed;
  {
    MutexLock lock(mutex_);
    closed = closed_;
    if (!closed) again_.push_front(check);
  }
  if (closed) end(check->items, tl::unexpected(std::move(*closed)));
}

// Of the pieces, which differ as a whole, the first half is asked next: whole ones, or whole blocks of one.
// False: what is left is one piece, in `asked`, of a block at most.
bool Verifier::narrow(Check& check, Pieces pieces) {
  check.asked = std::move(pieces);
  check.differs = true;
  const std::uint64_t half = (bytes_of(check.asked) + 1) / 2;
  if (check.asked.size() > 1) {
    std::size_t count = 0;
    for (std::uint64_t bytes = 0; bytes < half; ++count) bytes += check.asked[count].size;
    check.rest = cut_behind(check.asked, wire::kMostDigestBytes, std::min(count, check.asked.size() - 1));
    return true;
  }
  if (check.asked.front().size <= kDigestBlock) return false;
  check.rest = cut_behind(check.asked, std::max(half - half % kDigestBlock, std::uint64_t{kDigestBlock}), 2);
  return true;
}

// Of items that differ together, or cannot be compared together, each half is compared by itself.
void Verifier::split(const Check& check) {
  std::optional<Error> closed;
  const std::size_t half = check.items.size() / 2;
  const std::span items(check.items);
  {
    MutexLock lock(mutex_);
    closed = closed_;
    for (const auto part : {items.subspan(half), items.first(half)}) {
      if (closed) break;
      if (part.empty()) continue;
      auto one = std::make_shared<Check>();
      one->items.assign(part.begin(), part.end());
      again_.push_front(std::move(one));
    }
  }
  if (closed) end(check.items, tl::unexpected(std::move(*closed)));
}

// What is digested here now goes on to use its memory: its items end after that.
void Verifier::close(const Error& error) {
  std::vector<WorkItem> items;
  std::vector<std::uint64_t> queries;
  {
    MutexLock lock(mutex_);
    closed_ = error;
    std::ranges::move(std::exchange(landed_, {}), std::back_inserter(items));
    for (const auto& check : std::exchange(again_, {})) {
      std::ranges::move(check->items, std::back_inserter(items));
    }
    for (const auto& [query, check] : asked_) queries.push_back(query);
  }
  end(items, tl::unexpected(error));
  for (const std::uint64_t query : queries) tell(query, &Check::there, tl::unexpected(error));
}

}  // namespace p2p::engine
