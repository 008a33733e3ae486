// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/weights/subscriber.h"

#include <algorithm>
#include <utility>

#include "p2p/host_port.h"
#include "subscriber_impl.h"

namespace p2p::weights {

namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kTell{100};

tl::unexpected<Error> no_stage(std::uint64_t version, ErrorCode code, const std::string& why) {
  return tl::unexpected(
      Error{code, "Version " + std::to_string(version) + " of the weights was not staged: " + why + "."});
}

/// Where the packed bytes of the demand go. kInvalidArgument for shards with gaps or another order.
Result<std::vector<Piece>> places_of(const Manifest& wanted, const Demand& demand) {
  std::vector<Piece> pieces;
  for (std::uint32_t tensor = 0; tensor < wanted.tensors(); ++tensor) {
    for (std::size_t at = 0; at < wanted.shards(tensor); ++at) {
      const Shard to = wanted.shard(tensor, at), packed = demand.wanted.shard(tensor, at);
      const std::uint64_t bytes = wanted.bytes(tensor, at);
      for (std::size_t d = to.size.size(); d-- > 0;) {
        if (to.size[d] > 1 && to.strides[d] != packed.strides[d]) {
          return tl::unexpected(
              Error{ErrorCode::kInvalidArgument,
                    "a wanted shard of tensor '" + wanted.name(tensor) + "' has gaps in memory"});
        }
      }
      if (bytes == 0) continue;
      Piece* last = pieces.empty() ? nullptr : &pieces.back();
      if (last != nullptr && continues(*last, to.address)) {
        last->bytes += bytes;
      } else {
        pieces.push_back({packed.address, to.address, bytes});
      }
    }
  }
  return pieces;
}

/// kInvalidArgument where two pieces share memory: one would overwrite the other.
Status check_apart(std::vector<Piece> pieces) {
  std::ranges::sort(pieces, {}, &Piece::address);
  for (std::size_t at = 1; at < pieces.size(); ++at) {
    if (pieces[at].address < pieces[at - 1].address + pieces[at - 1].bytes) {
      return tl::unexpected(Error{ErrorCode::kInvalidArgument, "wanted shards overlap in memory"});
    }
  }
  return {};
}

}  // namespace

Result<std::uint64_t> Subscriber::Impl::wait_version(std::optional<std::uint64_t> above,
                                                     std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  std::optional<std::uint64_t> newest;
  const auto offered = [&] {
    for (const Offered& offer : offers_) {
      if (!newest || offer.key.version > *newest) newest = offer.key.version;
    }
    return newest && (!above || *newest > *above);
  };
  if (changed_.wait_until(lock, deadline_of(timeout), offered)) return *newest;
  const std::string which = above ? " after " + std::to_string(*above) : "";
  return tl::unexpected(
      Error{ErrorCode::kTimedOut, "No version" + which + " is offered yet" + unreached() + "."});
}

Result<std::unique_ptr<Held>> Subscriber::Impl::prepare(std::uint64_t version, const Manifest& wanted,
                                                        const StageOptions& options) {
  auto held = std::make_unique<Held>();
  held->version = version;
  auto demand = Demand::make(wanted, options.renames, chunk_bytes_);
  if (!demand) return tl::unexpected(std::move(demand.error()));
  held->demand = std::move(*demand);
  auto places = places_of(wanted, held->demand);
  if (!places) return tl::unexpected(std::move(places.error()));
  if (auto apart = check_apart(*places); !apart) return tl::unexpected(std::move(apart.error()));
  held->pieces = HeldPieces(std::move(*places));
  return held;
}

/// Takes back what overlaps the memory of a new version. Called without the lock.
Status Subscriber::Impl::make_room(Held& held, bool in_place) {
  std::vector<std::unique_ptr<Held>> gone;  // ends without the lock: it waits for peers
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> versions;
  for (const auto& [version, other] : held_) {
    const bool overlaps = std::ranges::any_of(
        held.pieces.all(), [&, &lent = other->lent](const Piece& piece) { return lent.overlaps(piece); });
    if (!overlaps) continue;
    if (committed_ == version && !in_place) {
      return tl::unexpected(
          Error{ErrorCode::kInvalidArgument, "its memory is that of version " + std::to_string(version) +
                                                 ", which is in use, and `in_place` is not set"});
    }
    versions.push_back(version);
    if (other->pieces.all() == held.pieces.all()) held.replaced = other->holding->key();
  }
  for (const std::uint64_t version : versions) gone.push_back(remove(version));
  return {};
}

Status Subscriber::Impl::stage(std::uint64_t version, const Manifest& wanted, const StageOptions& options) {
  const auto fail = [&](const Error& error) { return no_stage(version, error.code, error.message); };
  {
    const std::lock_guard lock(mutex_);
    if (in_stage_) return no_stage(version, ErrorCode::kInvalidArgument, "another stage is under way");
    if (held_.contains(version)) return no_stage(version, ErrorCode::kInvalidArgument, "it is here already");
    in_stage_ = true;
  }
  struct End {
    Impl& impl;
    std::unique_ptr<Held> gone{};  // ends without the lock
    ~End() {
      const std::lock_guard lock(impl.mutex_);
      impl.in_stage_ = false;
    }
  } end{*this};
  auto held = prepare(version, wanted, options);
  if (!held) return fail(held.error());
  if (auto room = make_room(**held, options.in_place); !room) return fail(room.error());
  auto lent = Lent::make(endpoint(), gpu_regions(), (*held)->pieces.all());
  if (!lent) return fail(lent.error());
  (*held)->lent = std::move(*lent);
  auto wish = LentTable::make(endpoint(), (*held)->demand.encode());
  if (!wish) return fail(wish.error());
  (*held)->wish = std::move(*wish);
  auto table =
      LentTable::make(endpoint(), HeldTable::encode((*held)->pieces.all(), (*held)->lent.descriptors()));
  if (!table) return fail(table.error());
  (*held)->table = std::move(*table);

  std::unique_lock lock(mutex_);
  staging_ = held->get();
  held_.emplace(version, std::move(*held));
  wake()->ring();
  const Status status = await(lock, *staging_, options);
  staging_ = nullptr;
  if (status) {
    staged_ = version;
    return {};
  }
  end.gone = remove(version);
  lock.unlock();
  end.gone.reset();
  return fail(status.error());
}

Status Subscriber::Impl::await(std::unique_lock<std::mutex>& lock, Held& held, const StageOptions& options) {
  const auto deadline = deadline_of(options.timeout);
  std::uint64_t told = ~std::uint64_t{0};
  Clock::time_point tell_at;
  Progress progress;
  for (;;) {
    const bool whole = held.holding && held.admitted && held.holding->whole();
    if (held.fetch) progress = held.progress();
    if (options.progress && (progress.bytes != told || Clock::now() >= tell_at)) {
      told = progress.bytes;
      tell_at = Clock::now() + kTell;
      lock.unlock();
      const bool go_on = options.progress(progress);
      lock.lock();
      if (!go_on) return tl::unexpected(Error{ErrorCode::kCancelled, "the caller ended it"});
      continue;  // it may have changed meanwhile
    }
    if (held.failed) return tl::unexpected(*held.failed);
    if (whole) break;
    if (Clock::now() >= deadline) {
      return tl::unexpected(
          Error{ErrorCode::kTimedOut,
                !held.admitted ? (held.why.empty() ? "nobody has offered it in time" + unreached() : held.why)
                               : std::to_string(progress.bytes) + " of " + std::to_string(held.demand.bytes) +
                                     " bytes came in time"});
    }
    changed_.wait_until(lock, options.progress ? std::min(deadline, tell_at) : deadline);
  }
  held.fetch = nullptr;
  send_all(Done{held.holding->key()});
  send_all(offer_of(held));
  return {};
}

std::unique_ptr<Held> Subscriber::Impl::remove(std::uint64_t version) {
  const auto found = held_.find(version);
  if (found == held_.end()) return nullptr;
  auto held = std::move(found->second);
  held_.erase(found);
  if (committed_ == version) committed_.reset();
  if (staged_ == version) staged_.reset();
  if (held->holding) send_all(Withdraw{held->holding->key()});
  if (held->holding && staging_ != nullptr && staging_->fetch && staging_->base == held->holding->key()) {
    staging_->fetch->use_base(
        std::nullopt, "version " + std::to_string(version) + ", on which they are based, was dropped");
  }
  held->fetch = nullptr;
  return held;
}

Result<std::uint64_t> Subscriber::Impl::commit() {
  const std::lock_guard lock(mutex_);
  if (!staged_) return tl::unexpected(Error{ErrorCode::kNotFound, "No version of the weights is staged."});
  committed_ = std::exchange(staged_, std::nullopt);
  return *committed_;
}

std::optional<std::uint64_t> Subscriber::Impl::committed() {
  const std::lock_guard lock(mutex_);
  return committed_;
}

Status Subscriber::Impl::drop(std::uint64_t version) {
  std::unique_ptr<Held> gone;  // ends without the lock: it waits for peers
  const std::lock_guard lock(mutex_);
  const bool staging = staging_ != nullptr && staging_->version == version;
  if (!staging) gone = remove(version);
  if (gone) return {};
  return tl::unexpected(
      Error{ErrorCode::kNotFound, "Version " + std::to_string(version) + " of the weights is not here."});
}

Subscriber::Subscriber(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Subscriber::Subscriber(Subscriber&&) noexcept = default;
Subscriber& Subscriber::operator=(Subscriber&&) noexcept = default;
Subscriber::~Subscriber() = default;

Result<Subscriber> Subscriber::create(const SubscriberOptions& options) {
  if (options.chunk_bytes > kMostChunkBytes) {
    return tl::unexpected(Error{
        ErrorCode::kInvalidArgument,
        "Chunks of " + std::to_string(options.chunk_bytes) + " bytes are refused: 64 MiB is the most."});
  }
  std::vector<Member> publishers;
  for (const std::string& text : options.publishers) {
    const auto place = HostPort::parse(text);
    if (!place || !place->port) {
      return tl::unexpected(
          Error{ErrorCode::kInvalidArgument, "'" + text + "' is no host:port of a publisher."});
    }
    publishers.push_back({0, place->host, *place->port, 0});
  }
  auto endpoint = Endpoint::create(options.endpoint);
  if (!endpoint) return tl::unexpected(std::move(endpoint.error()));
  return Subscriber(std::make_unique<Impl>(std::move(*endpoint), std::move(publishers), options));
}

std::string Subscriber::address() const { return impl_->self().address; }
std::uint16_t Subscriber::port() const { return impl_->self().port; }
Result<std::uint64_t> Subscriber::wait_version(std::optional<std::uint64_t> above,
                                               std::chrono::nanoseconds timeout) const {
  return impl_->wait_version(above, timeout);
}
Status Subscriber::stage(std::uint64_t version, const Manifest& wanted, const StageOptions& options) {
  return impl_->stage(version, wanted, options);
}
Result<std::uint64_t> Subscriber::commit() { return impl_->commit(); }
std::optional<std::uint64_t> Subscriber::committed() const { return impl_->committed(); }
Status Subscriber::drop(std::uint64_t version) { return impl_->drop(version); }

}  // namespace p2p::weights
