// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/request/segment_list.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/underlying.h"
#include "engine/request/stripe.h"
#include "engine/request/unique_list.h"

namespace p2p::engine {
namespace {

// Fewer blocks are quicker as pieces of one launch than as a launch of their own.
constexpr std::uint64_t kWorthRepeating = 256;

// Builds one list. Spans of a list mostly stay in one pair of regions, so the last pair is remembered.
class Builder {
 public:
  Builder(Operation operation, std::size_t spans, const ListContext& context)
      : context_(context), spans_(spans) {
    list_->operation = operation;
  }

  // False if there is more to it than two places in the current pair of regions: `add` sees to that.
  bool add_alike(const LocalSpan& local, const RemoteSpan& remote) {
    const bool alike = key_ != nullptr && local.region == local_->info().id &&
                       remote.region == remote_->id() && local.size == remote.size;
    if (!alike || !local_contains(local) || !remote_contains(remote)) return false;
    append(local, remote);
    return true;
  }

  // False: a remote region is waiting.
  Result<bool> add(const LocalSpan& local, const RemoteSpan& remote) {
    if (local.size != remote.size) {
      return refuse(ErrorCode::kInvalidArgument, local, remote,
                    fmt::format("the remote span has {} bytes", remote.size));
    }
    auto good = admit(local, remote);
    if (good && *good && local.size != 0) append(local, remote);
    return good;
  }

  // The same of what the pair has of the two spans.
  Result<bool> add_strided(const LocalSpan& local, const RemoteSpan& remote, const StridedPair& pair) {
    auto good = admit(local, remote);
    if (!good || !*good || pair.bytes == 0) return good;
    if (append_repeats(pair)) return good;
    pair.for_each_piece([&](std::byte* data, std::uint64_t address, std::uint64_t size) {
      append({local.region, data, size}, {remote.region, address, size});
    });
    return good;
  }

  std::shared_ptr<const SegmentList> finish() {
    if (!context_.takes_repeats) return std::move(list_);
    for (SegmentList::Portion& portion : list_->portions) {
      if (portion.segments.size() >= kWorthRepeating) fold_runs(portion);
    }
    return std::move(list_);
  }

 private:
  // Makes one segment of what lies like a row of equal blocks, where that is worth it.
  void fold_runs(SegmentList::Portion& portion) {
    auto& all = portion.segments;
    std::size_t kept = 0;
    for (std::size_t i = 0; i != all.size();) {
      const std::size_t run = run_at(all, i);
      const Segment& first = all[i];
      const bool folds = run >= kWorthRepeating &&
                         context_.takes_repeats(portion.transport, *first.registration, *first.key);
      if (!folds) {
        for (std::size_t left = run; left != 0; --left) all[kept++] = all[i++];
        continue;
      }
      list_->repeats.push_back({first.size, run, all[i + 1].local - first.local,
                                static_cast<std::int64_t>(all[i + 1].remote - first.remote)});
      Segment folded = first;
      folded.size *= run;
      folded.repeats = &list_->repeats.back();
      all[kept++] = folded;
      i += run;
    }
    all.resize(kept);
  }

  // How many from `i` on are equally long and equally far apart.
  static std::size_t run_at(std::span<const Segment> all, std::size_t i) {
    const auto follows = [&](std::size_t at) {
      const Segment &one = all[at], &next = all[at + 1];
      return next.size == all[i].size && one.repeats == nullptr && next.repeats == nullptr &&
             next.local - one.local == all[i + 1].local - all[i].local &&
             next.remote - one.remote == all[i + 1].remote - all[i].remote &&
             next.registration == all[i].registration && next.key == all[i].key;
    };
    std::size_t end = i;
    while (end + 1 != all.size() && follows(end)) ++end;
    return end + 1 - i;
  }

  // Makes the spans' regions the current pair and sees that they hold the spans. False: a remote region is
  // waiting.
  Result<bool> admit(const LocalSpan& local, const RemoteSpan& remote) {
    if (!local_ || local.region != local_->info().id || !remote_ || remote.region != remote_->id()) {
      auto known = enter(local, remote);
      if (!known || !*known) return known;
    }
    if (local.size == 0) return true;  // wherever it lies
    if (key_ == nullptr) {
      if (Status found = find_route(local, remote); !found) return tl::unexpected(found.error());
    }
    if (!local_contains(local)) {
      return refuse(ErrorCode::kOutOfRange, local, remote,
                    fmt::format("the local region {} is [{}, +{})", to_underlying(local.region),
                                fmt::ptr(local_->info().base), local_->info().size));
    }
    if (!remote_contains(remote)) {
      return refuse(
          ErrorCode::kOutOfRange, local, remote,
          fmt::format("the remote region is [{:#x}, +{})",
                      reinterpret_cast<std::uintptr_t>(remote_->info().base), remote_->info().size));
    }
    return true;
  }

  void append(const LocalSpan& local, const RemoteSpan& remote) {
    SegmentList::Portion& portion = list_->portions[portion_];
    append_merged(portion.segments, {local.data, remote.address, local.size, registration_, key_});
    portion.bytes += local.size;
    list_->bytes += local.size;
  }

  // False: it has to go piece by piece.
  bool append_repeats(const StridedPair& pair) {
    if (!context_.takes_repeats) return false;
    SegmentList::Portion& portion = list_->portions[portion_];
    const auto repeats = pair.repeats();
    if (!repeats || repeats->count * repeats->rows < kWorthRepeating ||
        !context_.takes_repeats(portion.transport, *registration_, *key_)) {
      return false;
    }
    list_->repeats.push_back(*repeats);
    portion.segments.push_back(
        {pair.data, pair.address, pair.bytes, registration_, key_, &list_->repeats.back()});
    portion.bytes += pair.bytes;
    list_->bytes += pair.bytes;
    return true;
  }

  tl::unexpected<Error> refuse(ErrorCode code, const LocalSpan& local, const RemoteSpan& remote,
                               std::string_view why) const {
    return fail(code, "{} {} bytes between {} and remote {:#x}: {}",
                list_->operation == Operation::kWrite ? "write" : "read", local.size, fmt::ptr(local.data),
                remote.address, why);
  }

  // Makes the spans' regions the current pair.
  Result<bool> enter(const LocalSpan& local, const RemoteSpan& remote) {
    key_ = nullptr;
    if (!local_ || local.region != local_->info().id) {
      local_ = context_.local(local.region);
      if (!local_) {
        return refuse(ErrorCode::kNotFound, local, remote,
                      fmt::format("no local region {}", to_underlying(local.region)));
      }
      locals_.keep(local_);
    }
    if (!remote_ || remote.region != remote_->id()) {
      remote_ = context_.remote(remote.region);
      if (!remote_) {
        return refuse(ErrorCode::kNotFound, local, remote,
                      fmt::format("no remote region {} was imported", to_underlying(remote.region)));
      }
      if (remote_->state() == RemoteRegion::State::kFailed) return tl::unexpected(remote_->error());
      if (remote_->state() == RemoteRegion::State::kWaiting) return false;
      remotes_.keep(remote_);
    }
    return true;
  }

  Status find_route(const LocalSpan& local, const RemoteSpan& remote) {
    auto transport = context_.route(*local_, *remote_);
    if (!transport) return refuse(transport.error().code, local, remote, transport.error().message);
    registration_ = local_->registration(*transport).get();
    key_ = remote_->key(*transport);
    portion_ = portion_of(*transport);
    return {};
  }

  std::size_t portion_of(std::size_t transport) {
    for (std::size_t i = 0; i < list_->portions.size(); ++i) {
      if (list_->portions[i].transport == transport) return i;
    }
    list_->portions.push_back({transport, {}, 0});
    // Most lists have one portion; growing it step by step would touch fresh pages again and again.
    if (list_->portions.size() == 1) list_->portions.front().segments.reserve(spans_);
    return list_->portions.size() - 1;
  }

  bool local_contains(const LocalSpan& span) const {
    return local_->info().contains(reinterpret_cast<std::uintptr_t>(span.data), span.size);
  }

  // As far as this side knows: the owner checks again, against the truth.
  bool remote_contains(const RemoteSpan& span) const {
    const RegionInfo& info = remote_->info();
    const bool asked = info.size != 0;
    return asked ? info.contains(span.address, span.size) : span.address + span.size >= span.address;
  }

  const ListContext& context_;
  const std::size_t spans_;
  std::shared_ptr<SegmentList> list_ = std::make_shared<SegmentList>();
  UniqueList<Region> locals_{list_->locals};
  UniqueList<RemoteRegion> remotes_{list_->remotes};
  std::shared_ptr<Region> local_;
  std::shared_ptr<RemoteRegion> remote_;
  const Registration* registration_ = nullptr;
  const RemoteKey* key_ = nullptr;  // null: the pair has no route yet
  std::size_t portion_ = 0;
};

}  // namespace

Status SegmentList::enter() const {
  for (std::size_t i = 0; i < remotes.size(); ++i) {
    if (remotes[i]->add_user()) continue;
    const Error error = remotes[i]->error();
    while (i-- > 0) remotes[i]->remove_user();
    return tl::unexpected(error);
  }
  for (const auto& local : locals) local->add_user();
  return {};
}

void SegmentList::leave() const {
  for (const auto& remote : remotes) remote->remove_user();
  for (const auto& local : locals) local->remove_user();
}

Result<std::shared_ptr<const SegmentList>> build_list(Operation operation, std::span<const LocalSpan> local,
                                                      std::span<const RemoteSpan> remote,
                                                      const ListContext& context,
                                                      std::span<const StridedPair> strided) {
  if (local.size() != remote.size()) {
    return fail(ErrorCode::kInvalidArgument, "{} a list: {} local spans, {} remote ones",
                operation == Operation::kWrite ? "write" : "read", local.size(), remote.size());
  }
  std::uint64_t most = strided.empty() ? local.size() : 0;
  for (const StridedPair& pair : strided)
    most += std::max(pair.local.count * pair.local.rows, pair.remote.count * pair.remote.rows);
  Builder builder(operation, most, context);
  for (std::size_t i = 0; i < local.size(); ++i) {
    if (strided.empty() && builder.add_alike(local[i], remote[i])) continue;
    const auto added = strided.empty() ? builder.add(local[i], remote[i])
                                       : builder.add_strided(local[i], remote[i], strided[i]);
    if (!added && local.size() == 1) return tl::unexpected(added.error());
    if (!added) {
      return tl::unexpected(Error{added.error().code,
                                  fmt::format("entry {} of {}: {}", i, local.size(), added.error().message)});
    }
    if (!*added) return std::shared_ptr<const SegmentList>();
  }
  return builder.finish();
}

}  // namespace p2p::engine
