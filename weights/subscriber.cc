// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/weights/subscriber.h"

#include <algorithm>
#include <map>
#include <utility>

#include "fetch.h"
#include "p2p/host_port.h"

namespace p2p::weights {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostOffers = 4096;
constexpr std::chrono::seconds kRedial{1};
// A publisher says what it offers as soon as a link is open.
constexpr std::chrono::seconds kHear{1};
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

class Subscriber::Impl : public Node {
 public:
  Impl(Endpoint endpoint, std::vector<Member> publishers, const SubscriberOptions& options)
      : Node(std::move(endpoint)),
        chunk_bytes_(options.chunk_bytes),
        stall_(std::min<std::chrono::milliseconds>(options.stall, 24h * 365)) {
    for (Member& member : publishers) directories_.push_back({std::move(member), nullptr, {}});
    start();
  }
  ~Impl() override { stop(); }

  Result<std::uint64_t> wait_version(std::optional<std::uint64_t> above, std::chrono::nanoseconds timeout);
  Status stage(std::uint64_t version, const Manifest& wanted, const StageOptions& options);
  Result<std::uint64_t> commit();
  std::optional<std::uint64_t> committed();
  Status drop(std::uint64_t version);

 private:
  struct Directory {
    Member place;
    LinkPtr link;
    Clock::time_point dialled;
    Clock::time_point opened;
    bool failed = false;  // the last link to it
  };
  struct Offered {
    Key key;
    Key base;
    LinkPtr link;
  };
  /// A version that is here or on its way.
  struct Held {
    std::uint64_t version = 0;
    Demand demand;
    HeldPieces pieces{{}};
    Lent lent;
    std::unique_ptr<LentTable> wish;   // the demand, for the publisher
    std::unique_ptr<LentTable> table;  // for those who follow
    LinkPtr directory;                 // was asked to join
    std::vector<LinkPtr> refused;
    std::string why;  // it was refused
    Key replaced;     // whose memory this is: each of its bytes is that of the same place
    Key base;         // of its deltas
    bool admitted = false;
    std::optional<Error> failed;
    std::unique_ptr<Holding> holding;
    std::unique_ptr<Fetch> fetch;  // null: whole, or not joined yet
  };

  void take_offer(const LinkPtr& link, const Offer& offer);
  void use_base(Held& held, const Key& publication);
  static Offer offer_of(const Held& held);
  void on_open(const LinkPtr& link) override;
  void on_lost(const LinkPtr& link) override;
  void on_message(const LinkPtr& link, Message message) override;
  bool step() override;
  bool busy() const override { return staging_ != nullptr; }

  void redial();
  bool may_offer(const Held& held, const Directory& directory) const;
  void join(Held& held);
  void ask_again(Held& held);
  void take(const LinkPtr& link, Held& held, const Message& message);
  Held* find(const Key& key);
  Result<std::unique_ptr<Held>> prepare(std::uint64_t version, const Manifest& wanted,
                                        const StageOptions& options);
  Status make_room(Held& held, bool in_place);
  Status await(std::unique_lock<std::mutex>& lock, Held& held, const StageOptions& options);
  std::unique_ptr<Held> remove(std::uint64_t version);

  const std::uint64_t chunk_bytes_;
  const std::chrono::milliseconds stall_;
  std::vector<Directory> directories_;
  std::vector<Offered> offers_;
  std::map<std::uint64_t, std::unique_ptr<Held>> held_;
  Held* staging_ = nullptr;
  bool in_stage_ = false;
  std::optional<std::uint64_t> staged_;
  std::optional<std::uint64_t> committed_;
};

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
  return tl::unexpected(
      Error{ErrorCode::kTimedOut, above ? "No version after " + std::to_string(*above) + " is offered yet."
                                        : "No version is offered yet."});
}

Result<std::unique_ptr<Subscriber::Impl::Held>> Subscriber::Impl::prepare(std::uint64_t version,
                                                                          const Manifest& wanted,
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
  auto lent = Lent::make(endpoint(), (*held)->pieces.all());
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
    if (held.fetch) progress = held.fetch->progress();
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
          Error{ErrorCode::kTimedOut, !held.admitted
                                          ? (held.why.empty() ? "nobody has offered it in time" : held.why)
                                          : std::to_string(progress.bytes) + " of " +
                                                std::to_string(held.demand.bytes) + " bytes came in time"});
    }
    changed_.wait_until(lock, options.progress ? std::min(deadline, tell_at) : deadline);
  }
  held.fetch = nullptr;
  send_all(Done{held.holding->key()});
  send_all(offer_of(held));
  return {};
}

std::unique_ptr<Subscriber::Impl::Held> Subscriber::Impl::remove(std::uint64_t version) {
  const auto found = held_.find(version);
  if (found == held_.end()) return nullptr;
  auto held = std::move(found->second);
  held_.erase(found);
  if (committed_ == version) committed_.reset();
  if (staged_ == version) staged_.reset();
  if (held->holding) send_all(Withdraw{held->holding->key()});
  if (held->holding && staging_ != nullptr && staging_->fetch && staging_->base == held->holding->key()) {
    staging_->fetch->use_base(
        nullptr, "version " + std::to_string(version) + ", on which they are based, was dropped");
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

Offer Subscriber::Impl::offer_of(const Held& held) {
  return {held.holding->key().whole(), held.base.whole()};
}

void Subscriber::Impl::on_open(const LinkPtr& link) {
  for (Directory& directory : directories_) {
    if (directory.link == link) directory.opened = Clock::now(), directory.failed = false;
  }
  for (const auto& [version, held] : held_) {
    if (!held->holding || !held->holding->whole() || held->fetch) continue;
    send(link, Done{held->holding->key()});  // what was said before may have been lost with the link
    send(link, offer_of(*held));
  }
}

void Subscriber::Impl::on_lost(const LinkPtr& link) {
  std::erase_if(offers_, [&](const Offered& offer) { return offer.link == link; });
  for (Directory& directory : directories_) directory.failed |= directory.link == link;
  for (const auto& [version, held] : held_) {
    if (held->holding) held->holding->forget(link);
    if (held->fetch) held->fetch->lost(link);
    if (held->directory == link) ask_again(*held);
  }
}

/// Who was asked is gone. Before its answer it is as if nobody had offered the version.
void Subscriber::Impl::ask_again(Held& held) {
  held.directory = nullptr;
  if (held.admitted) return;
  held.fetch = nullptr;  // refers to the holding
  held.holding = nullptr;
  held.base = {};
}

Subscriber::Impl::Held* Subscriber::Impl::find(const Key& key) {
  const auto found = held_.find(key.version);
  if (found == held_.end() || !found->second->holding || found->second->holding->key() != key) return nullptr;
  return found->second.get();
}

void Subscriber::Impl::on_message(const LinkPtr& link, Message message) {
  const Key key = std::visit([](const auto& kind) { return kind.key; }, message);
  if (std::holds_alternative<Offer>(message)) {
    take_offer(link, std::get<Offer>(message));
  } else if (std::holds_alternative<Withdraw>(message)) {
    std::erase_if(
        offers_, [&](const Offered& offer) { return offer.link == link && offer.key.same_publication(key); });
    for (const auto& [version, held] : held_) {
      const bool same = held->holding && held->holding->key().same_publication(key);
      if (same && held->fetch) held->fetch->lost(link);
      if (same && held->directory == link && !held->admitted) ask_again(*held);
    }
  } else if (Held* held = find(key)) {
    take(link, *held, message);
  } else if (std::holds_alternative<Join>(message)) {
    send(link, Refuse{key, link->peer.address + " asked a subscriber that has other shards of it"});
  }
}

void Subscriber::Impl::take_offer(const LinkPtr& link, const Offer& offer) {
  const auto known = std::ranges::find_if(
      offers_, [&](const Offered& one) { return one.link == link && one.key == offer.key; });
  if (known == offers_.end() && offers_.size() < kMostOffers)
    offers_.push_back({offer.key, offer.base, link});
}

void Subscriber::Impl::take(const LinkPtr& link, Held& held, const Message& message) {
  if (std::holds_alternative<Join>(message)) held.holding->admit(link);
  if (std::holds_alternative<Follow>(message)) held.holding->follow(link);
  if (const auto* tell = std::get_if<Tell>(&message)) {
    held.holding->learn(tell->member);
    if (held.fetch) held.fetch->tell(tell->member);
    if (tell->member.id == self().id) held.admitted = true;
  }
  if (const auto* refuse = std::get_if<Refuse>(&message); refuse && held.directory == link) {
    held.directory = nullptr;
    held.refused.push_back(link);
    held.why = refuse->why;
  }
  if (!held.fetch) return;
  if (const auto* layout = std::get_if<Layout>(&message)) held.fetch->laid_out(link, *layout);
  if (const auto* delta = std::get_if<Delta>(&message)) held.fetch->has_delta(link, *delta);
  if (const auto* have = std::get_if<Have>(&message)) held.fetch->have(link, have->chunks);
}

void Subscriber::Impl::redial() {
  const Clock::time_point now = Clock::now();
  for (Directory& directory : directories_) {
    if (directory.link && !directory.link->lost) continue;
    if (directory.link && now - directory.dialled < kRedial) continue;
    directory.dialled = now;
    directory.link = dial(directory.place);
  }
}

/// It has not had the time to say whether it offers the version.
bool Subscriber::Impl::may_offer(const Held& held, const Directory& directory) const {
  if (!directory.link || !directory.link->open) return !directory.failed;
  const bool refused = std::ranges::find(held.refused, directory.link) != held.refused.end();
  return !refused && !directory.link->lost && Clock::now() - directory.opened < kHear;
}

/// Asks one who offers the version to take part; again where that one was lost.
void Subscriber::Impl::join(Held& held) {
  Offered* choice = nullptr;
  bool any = false;
  std::uint64_t publication = held.holding ? held.holding->key().publication : 0;
  for (Offered& offer : offers_) {
    if (offer.key.version != held.version) continue;
    if (publication == 0) publication = offer.key.publication;
    if (offer.key.publication != publication) {
      held.failed =
          Error{ErrorCode::kInvalidArgument,
                "two publishers offer it, one of them or a holder of it, at " + offer.link->peer.place()};
      return;
    }
    any = true;
    if (std::ranges::find(held.refused, offer.link) == held.refused.end() && choice == nullptr)
      choice = &offer;
  }
  if (choice == nullptr) {
    const bool more = std::ranges::any_of(
        directories_, [&](const Directory& directory) { return may_offer(held, directory); });
    if (any && !held.admitted && !more) held.failed = Error{ErrorCode::kInvalidArgument, held.why};
    return;
  }
  if (!held.holding) {
    const Key key{held.version, publication, digest_of(held.wish->bytes)};
    held.holding = std::make_unique<Holding>(*this, key, held.demand, held.table->region.descriptor());
    held.fetch = std::make_unique<Fetch>(*this, *held.holding, held.pieces, held.lent, stall_);
  }
  if (choice->base != Key() && held.base == Key()) use_base(held, choice->base);
  held.directory = choice->link;
  send(choice->link, Join{held.holding->key(), held.wish->region.descriptor()});
}

/// The version's deltas are based on that publication: whether it is here.
void Subscriber::Impl::use_base(Held& held, const Key& publication) {
  held.base = {publication.version, publication.publication, held.holding->key().demand};
  const Held* at = held.replaced == held.base ? &held : find(held.base);
  const bool whole = at == &held || (at != nullptr && at->holding->whole());
  if (!whole) {
    return held.fetch->use_base(nullptr,
                                "version " + std::to_string(publication.version) +
                                    ", on which they are based, is not here as it was published there");
  }
  if (!held.lent.on_host() || !at->lent.on_host()) {
    return held.fetch->use_base(nullptr, "they are not taken into memory of a GPU");
  }
  held.holding->give_deltas();
  held.fetch->use_base(&at->pieces, "");
}

bool Subscriber::Impl::step() {
  redial();
  if (staging_ == nullptr || staging_->failed) return false;
  Held& held = *staging_;
  if (!held.directory) join(held);
  if (!held.fetch) return false;
  const auto more = held.fetch->step();
  if (!more) held.failed = more.error();
  return more && *more;
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
