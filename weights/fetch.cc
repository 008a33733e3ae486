// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "fetch.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "delta.h"
#include "p2p/write_log.h"

namespace p2p::weights {

namespace {

using namespace std::chrono_literals;

// Reads under way at a time: one moves while the next is asked for. Each costs every member behind the time
// of a chunk. Over NVLink that is 0.1 ms, about as long as it takes to ask for the next.
constexpr std::size_t kDepth = 2;
constexpr std::size_t kGpuDepth = 4;
// Where chunks follow one another so soon, what it takes to begin and to end a read counts: with more of
// them `tcp` of one host brings 41 GB/s to a GPU in place of 30.
constexpr std::chrono::milliseconds kSoon{2};
constexpr std::size_t kSoonDepth = 8;

// Chunks that are hashed in the memory of a GPU while others come.
constexpr std::size_t kHashed = 8;

// How many of those in front are asked what they have: the predecessor, and two that can bridge it.
constexpr std::size_t kFollowed = 3;

// A member is slow if it has not answered for so long,
constexpr std::chrono::milliseconds kQuiet{1000};
// if there was nothing to take from it for so long while the member before it is so many chunks ahead,
constexpr std::chrono::milliseconds kLagging{100};
constexpr std::uint32_t kLag = 8;
// if it got nothing for so long, next to the publisher, which has all from the beginning,
constexpr std::chrono::milliseconds kStuck{10000};
// if its table or a chunk from it takes longer than `Source::keeps_waiting` and `Pace::patience` say, or if
// it starves, or tells nothing for as long as that, and a chunk comes in less than half of that from the
// publisher.

// Times that one chunk may come wrong, from whomever.
constexpr std::uint32_t kMostWrong = 4;

/// Those before `order` in the chain, the nearest first, those of this host before others and those who give
/// deltas before both; then those behind; then the slow ones. The publisher is the very first of the chain.
auto place_of(const Source& source, std::uint32_t order, const std::string& here, bool deltas) {
  const bool behind = source.member.order > order;
  const bool away = source.member.address != here || source.is_publisher();
  const auto at = static_cast<std::int64_t>(source.member.order);
  return std::tuple(source.slow, behind, deltas && !source.gives_deltas(), away, behind ? at : -at);
}

/// `under_way` beside the next one.
std::size_t depth_for(const Lent& lent, const std::vector<Source*>& ranked, std::size_t under_way) {
  if (lent.on_host()) return kDepth;
  const auto took = ranked.empty() ? std::chrono::nanoseconds{} : ranked.front()->pace.pull;
  return took.count() != 0 && took < kSoon * (under_way + 1) ? kSoonDepth : kGpuDepth;
}

void warn_of_wrong(const std::string& what, std::uint64_t version, const Source& source) {
  write_log(LogLevel::kWarning, "Weights: " + what + " of version " + std::to_string(version) +
                                    " came wrong from " + source.member.place() + ", and is asked for again");
}

tl::unexpected<Error> nobody_has(std::uint32_t chunk, std::uint32_t chunks) {
  return tl::unexpected(
      Error{ErrorCode::kPeerGone, "the publisher is gone, and of those left nobody has chunk " +
                                      std::to_string(chunk) + " of " + std::to_string(chunks)});
}

/// Four times, from whomever.
tl::unexpected<Error> wrong_for_good(const std::string& chunk, const Source& source) {
  return tl::unexpected(Error{ErrorCode::kProtocol, chunk + " came wrong " + std::to_string(kMostWrong) +
                                                        " times, at last from " + source.member.place() +
                                                        "; the memory published may have changed"});
}

}  // namespace

Fetch::Fetch(Node& node, Holding& holding, const HeldPieces& pieces, const Lent& lent,
             std::chrono::milliseconds stall)
    : node_(node),
      holding_(holding),
      pieces_(pieces),
      lent_(lent),
      stall_(stall),
      patcher_(node, {&pieces, &lent}, holding.demand()),
      moved_(Clock::now()),
      starved_(moved_),
      hope_(moved_) {
  const std::uint32_t chunks = holding.demand().chunks();
  pulled_.resize(chunks);
  digests_.resize(chunks);
  told_by_publisher_.resize(chunks);
  progress_.version = holding.key().version;
  progress_.total_bytes = holding.demand().bytes;
}

Fetch::~Fetch() {
  for (const Pull& pull : pulls_) pull.transfer.cancel();
}

void Fetch::tell(const LinkPtr& link, const Member& member) {
  reorder_ = true;
  if (member.id == node_.self().id) {
    order_ = member.order;
    return;
  }
  auto known = std::ranges::find(sources_, member.id, [](const auto& row) { return row->member.id; });
  if (known == sources_.end()) {
    if (sources_.size() >= kMostMembers) return;
    known = sources_.insert(known, std::make_unique<Source>(node_, holding_, member));
  } else {
    (*known)->renew(member);
  }
  if (link->peer.id == member.id) (*known)->follow_by(link);
}

Source* Fetch::at(const LinkPtr& link) const {
  const auto found = std::ranges::find(sources_, link, [](const auto& source) { return source->link(); });
  return found == sources_.end() ? nullptr : found->get();
}

void Fetch::laid_out(const LinkPtr& link, const Layout& layout) {
  if (Source* source = at(link)) source->laid_out(layout);
  reorder_ = true;
}

void Fetch::has_delta(const LinkPtr& link, const Delta& delta) {
  if (Source* source = at(link); source != nullptr && patcher_.active()) source->has_delta(delta);
}

void Fetch::use_base(std::optional<VersionMemory> base, std::string why) {
  for (const Pull& pull : checks_) pull.patch.wait();  // they read the one before
  patcher_.use(base);
  progress_.no_delta = std::move(why);
  reorder_ = true;
}

void Fetch::have(const LinkPtr& link, const std::vector<ChunkDigest>& chunks) {
  look_ = true;
  Source* source = at(link);
  if (source == nullptr) return;
  if (chunks.size() == 1) source->pace.had(Clock::now());
  for (const ChunkDigest& row : chunks) {
    // What the publisher says counts more than what others say of it.
    if (!source->has_come(row) || told_by_publisher_[row.chunk]) continue;
    if (digests_[row.chunk] && !source->is_publisher()) continue;
    digests_[row.chunk] = row.digest;
    told_by_publisher_[row.chunk] = source->is_publisher();
  }
}

void Fetch::lost(const LinkPtr& link) {
  Source* source = at(link);
  if (source == nullptr || source->lost()) return;
  if (!ranked_.empty() && ranked_[0] == source) ++progress_.bridged;
  source->lose();
  reorder_ = true;
}

void Fetch::rank() {
  if (!std::exchange(reorder_, false)) return;
  look_ = true;
  ranked_.clear();
  for (const auto& source : sources_) {
    if (!source->lost()) ranked_.push_back(source.get());
  }
  std::ranges::sort(ranked_, {}, [&](const Source* source) {
    return place_of(*source, *order_, node_.self().address, patcher_.active());
  });
  progress_.from = ranked_.empty() ? "" : ranked_[0]->member.place();
}

void Fetch::follow() {
  for (std::size_t at = 0; at < ranked_.size(); ++at) {
    if (at < kFollowed || ranked_[at]->is_publisher()) ranked_[at]->follow();
  }
}

bool Fetch::finish_pulls() {
  bool any = false;
  for (std::size_t at = 0; at < pulls_.size();) {
    if (!pulls_[at].transfer.done()) {
      ++at;
      continue;
    }
    any = look_ = true;
    Pull pull = std::move(pulls_[at]);
    pulls_.erase(pulls_.begin() + static_cast<std::ptrdiff_t>(at));
    const Status status = pull.transfer.status();
    if (status) {
      progress_.last = Clock::now() - begun_;
      note_time(pull, Clock::now() - pull.start);
      begin_check(std::move(pull));
      continue;
    }
    miss(pull.chunk);
    if (status.error().code != ErrorCode::kCancelled) {
      pass(*pull.source, status.error().message);
    }
  }
  return any;
}

void Fetch::note_time(const Pull& pull, std::chrono::nanoseconds took) {
  pull.source->pace.gave(took, !pull.delta);
  const bool tried = tried_ == pull.chunk && pull.source->is_publisher();
  if (tried && !ranked_.empty() && 2 * took < ranked_[0]->pace.gap(Clock::now(), starved_)) {
    pass(*ranked_[0], "the publisher is faster");
  }
}

/// A chunk has come. In the memory of a GPU it is hashed there meanwhile, and of a delta it is made.
void Fetch::begin_check(Pull pull) {
  if (!pull.delta) {
    const std::uint64_t begin = holding_.demand().begin(pull.chunk), end = holding_.demand().end(pull.chunk);
    auto digest = lent_.digest(node_.endpoint(), pieces_.within(begin, end));
    if (!digest) return void(failed_ = digest.error());
    pull.digest = std::move(*digest);
  }
  checks_.push_back(std::move(pull));
}

bool Fetch::finish_checks() {
  for (Pull& pull : checks_) pull.start_patch(patcher_, *digests_[pull.chunk]);
  bool any = false;
  while (!checks_.empty() && checks_[0].checked()) {
    any = look_ = true;
    Pull pull = std::move(checks_[0]);
    checks_.erase(checks_.begin());
    end_check(pull, pull.found());
  }
  return any;
}

void Fetch::end_check(const Pull& pull, const Result<std::optional<std::uint64_t>>& found) {
  miss(pull.chunk);
  if (!found && !pull.delta) return void(failed_ = found.error());
  if (!found && patcher_.active()) use_base(std::nullopt, found.error().message);
  if (!found) return;  // it comes whole
  if (auto checked = check(pull, *found == digests_[pull.chunk]); !checked) failed_ = checked.error();
}

void Fetch::miss(std::uint32_t chunk) {
  pulled_[chunk] = false;
  first_missing_ = std::min(first_missing_, chunk);
}

/// What has come is the chunk that the publisher has, or else wrong.
Status Fetch::check(const Pull& pull, bool right) {
  const std::string chunk = "chunk " + std::to_string(pull.chunk);
  if (right) {
    const std::uint64_t bytes = holding_.demand().end(pull.chunk) - holding_.demand().begin(pull.chunk);
    moved_ = Clock::now();
    if (progress_.bytes == 0) progress_.first = moved_ - begun_;
    progress_.bytes += bytes;
    if (pull.source->is_publisher()) progress_.publisher_bytes += bytes;
    if (pull.delta) progress_.delta_bytes += pull.delta->bytes().size(), progress_.from_deltas += bytes;
    for (const auto& source : sources_) source->came(pull.chunk);
    const std::uint64_t travelled = pull.delta ? pull.delta->bytes().size() : bytes;
    holding_.account().received[pull.source->member.place()] += travelled;
    node_.send(pull.source->link(), Took{holding_.key(), travelled});
    holding_.add(pull.chunk, *digests_[pull.chunk], pull.delta ? pull.delta->bytes() : "");
    return {};
  }
  if (pull.source->lost()) return {};  // what it has withdrawn may have changed meanwhile
  ++progress_.wrong_digests;
  warn_of_wrong((pull.delta ? "the delta of " : "") + chunk, holding_.key().version, *pull.source);
  if (pull.delta) {
    patcher_.take_whole(pull.chunk);
    progress_.no_delta = "that of " + chunk + " from " + pull.source->member.place() + " is wrong";
    return {};
  }
  pull.source->bad.insert(pull.chunk);
  if (++wrong_[pull.chunk] < kMostWrong) return {};
  return wrong_for_good(chunk, *pull.source);
}

void Fetch::pass(Source& source, const std::string& why) {
  if (source.slow || source.lost()) return;
  source.slow = reorder_ = true;
  starved_ = Clock::now();
  ++progress_.bridged;
  write_log(LogLevel::kInfo, "Weights: " + source.member.place() + " is passed over: " + why);
}

void Fetch::pass_slow(Clock::time_point now) {
  if (ranked_.size() < 2 || ranked_[0]->slow) return;
  Source& first = *ranked_[0];
  const auto patience =
      first.pace.patience(depth_for(lent_, ranked_, pulls_.size()) * holding_.demand().chunk_bytes);
  for (const Pull& pull : pulls_) {
    if (pull.source != &first || now - pull.start < patience) continue;
    for (const Pull& other : pulls_) {
      if (other.source == &first) other.transfer.cancel();
    }
    return pass(first, "a chunk has not come for long");
  }
  if (first.keeps_waiting(now)) return pass(first, "its table has not come for long");
  if (!pulls_.empty() || first.useful() > 0) {
    starved_ = now;
    return;
  }
  const auto starved = now - starved_;
  if (!first.heard() && starved > kQuiet) return pass(first, "it does not answer");
  if (!first.heard() || starved < kLagging) return;
  Source& next = *ranked_[1];
  if (next.is_publisher()) return try_publisher(first, next, now);
  const bool whole = next.count() == pulled_.size() && starved > kQuiet;
  if (whole || next.useful() > kLag) pass(first, "it has much less than the one before it");
}

/// The first one takes from the publisher as well. Whether it is slow, or the publisher, only a chunk shows.
void Fetch::try_publisher(Source& first, Source& publisher, Clock::time_point now) {
  const std::chrono::nanoseconds gap = first.pace.gap(now, starved_);
  if (gap > kStuck) return pass(first, "it gets nothing");
  if (tried_ || (!first.pace.starves() && gap < first.pace.patience(holding_.demand().chunk_bytes))) return;
  for (std::uint32_t chunk = first_missing_; chunk < pulled_.size(); ++chunk) {
    if (!missing(chunk) || !digests_[chunk] || !publisher.has(chunk)) continue;
    if (pull(publisher, chunk, now)) tried_ = chunk;
    return;
  }
}

/// The first who has it; none as long as the first one may still get it.
Source* Fetch::source_of(std::uint32_t chunk) {
  bool all_bad = true;
  for (Source* source : ranked_) {
    if (source->bad.contains(chunk)) continue;
    all_bad = false;
    if (source->has(chunk)) return source;
    if (!source->slow) return nullptr;
  }
  if (all_bad) {
    for (Source* source : ranked_) source->bad.erase(chunk);
    look_ = true;
  }
  return nullptr;
}

void Fetch::start_pulls(Clock::time_point now) {
  if (!std::exchange(look_, false)) return;
  const std::uint32_t chunks = holding_.demand().chunks();
  while (first_missing_ < chunks && holding_.has(first_missing_)) ++first_missing_;
  if (checks_.size() >= kHashed) return;
  const std::size_t depth = depth_for(lent_, ranked_, pulls_.size());
  for (std::uint32_t chunk = first_missing_; chunk < chunks && pulls_.size() < depth; ++chunk) {
    if (!missing(chunk) || !digests_[chunk]) continue;
    Source* source = source_of(chunk);
    if (source == nullptr) continue;
    if (pull(*source, chunk, now)) continue;
    look_ = true;
    return;
  }
}

/// False: not now.
bool Fetch::pull(Source& source, std::uint32_t chunk, Clock::time_point now) {
  Pull pull{chunk, &source, now};
  const auto begun = begin(pull);
  if (begun && !*begun) return false;
  if (!begun) {
    pass(source, begun.error().message);
    source.bad.insert(chunk);
    return false;
  }
  pull.transfer.on_done([wake = node_.wake()] { wake->ring(); });
  pulls_.push_back(std::move(pull));
  pulled_[chunk] = true;
  return true;
}

/// Takes the delta of a chunk where that makes it, else the chunk itself. False: not now.
Result<bool> Fetch::begin(Pull& pull) {
  const std::uint64_t begin = holding_.demand().begin(pull.chunk), end = holding_.demand().end(pull.chunk);
  const bool patches = patcher_.takes(pull.chunk);
  const Delta* delta = patches ? pull.source->delta(pull.chunk) : nullptr;
  if (delta != nullptr && delta->bytes <= most_of_delta(end - begin)) {
    auto reading = TableRead::start(node_, pull.source->link(), delta->memory, delta->address, delta->bytes);
    if (!reading) return tl::unexpected(std::move(reading.error()));
    pull.delta = std::move(*reading);
    pull.transfer = pull.delta->transfer();
    return true;
  }
  auto ready = pull.source->ready();
  if (!ready || !*ready) return ready;
  auto transfer = pull.source->read(pull.chunk, lent_, pieces_.within(begin, end));
  if (!transfer) return tl::unexpected(std::move(transfer.error()));
  pull.transfer = std::move(*transfer);
  if (patches && progress_.no_delta.empty()) {
    progress_.no_delta = pull.source->member.place() + " has none of chunk " + std::to_string(pull.chunk) +
                         " that is less than half of it";
  }
  patcher_.take_whole(pull.chunk);
  return true;
}

Status Fetch::check_stall(Clock::time_point now) {
  const bool some = std::ranges::any_of(
      ranked_, [](const Source* at) { return (at->is_publisher() && at->heard()) || at->useful() > 0; });
  if (some || !pulls_.empty()) hope_ = now;
  if (now - hope_ < stall_) return {};
  return nobody_has(first_missing_, holding_.demand().chunks());
}

void Fetch::note_wait() {
  const bool waits = pulls_.empty() && checks_.empty() && !holding_.whole();
  const std::string whom = progress_.from.empty() ? "members" : progress_.from;
  Account& account = holding_.account();
  account.wait_for(waits ? whom : "", Clock::now());
  progress_.given_bytes = account.given;
  progress_.waited = account.waited;
  progress_.waits_for = account.waits_for;
}

Result<bool> Fetch::step() {
  const Clock::time_point now = Clock::now();
  bool more = finish_pulls();
  more |= finish_checks();
  if (failed_) return tl::unexpected(*failed_);
  if (!order_) starved_ = now;
  if (holding_.whole() || !order_) return more;
  rank();
  if (ranked_.empty() && now - std::max(moved_, looked_again_) > kQuiet) {
    looked_again_ = now;
    for (const auto& source : sources_) source->find_again();
    reorder_ = true;
    rank();
  }
  follow();
  pass_slow(now);
  rank();
  start_pulls(now);
  if (auto status = check_stall(now); !status) return tl::unexpected(std::move(status.error()));
  return more;
}

}  // namespace p2p::weights
