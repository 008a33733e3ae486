// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/weights/publisher.h"

#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "delta_maker.h"
#include "holding.h"
#include "p2p/write_log.h"
#include "table_read.h"

namespace p2p::weights {

namespace {

// The most different demands for one version.
constexpr std::size_t kMostClasses = 1024;

// Chunks in the memory of GPUs that are hashed at a time.
constexpr std::size_t kHashedAtOnce = 8;

std::uint64_t draw_publication() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

tl::unexpected<Error> published_already(std::uint64_t version) {
  return tl::unexpected(
      Error{ErrorCode::kInvalidArgument, "Version " + std::to_string(version) + " is published already."});
}

/// Once for those who want the same.
void warn_of_no_delta(const Key& base, const std::string& why) {
  write_log(LogLevel::kWarning, "Weights: no deltas on version " + std::to_string(base.version) + ": " + why);
}

/// The shards of a manifest as ranges of memory. kInvalidArgument where elements do not follow one another
/// upwards: what lies between them would be readable, too.
Result<std::vector<Piece>> ranges_of(const Manifest& owned) {
  std::vector<Piece> ranges;
  for (std::uint32_t tensor = 0; tensor < owned.tensors(); ++tensor) {
    for (std::size_t at = 0; at < owned.shards(tensor); ++at) {
      const Shard shard = owned.shard(tensor, at);
      const std::uint64_t bytes = owned.bytes(tensor, at);
      std::uint64_t extent = owned.dtype(tensor).bytes;
      bool forward = true;
      for (std::size_t d = 0; d < shard.size.size(); ++d) {
        forward &= shard.size[d] <= 1 || shard.strides[d] > 0;
        if (shard.size[d] > 0) extent += (shard.size[d] - 1) * static_cast<std::uint64_t>(shard.strides[d]);
      }
      if (bytes == 0) continue;
      if (!forward || extent != bytes) {
        return tl::unexpected(
            Error{ErrorCode::kInvalidArgument,
                  "A shard of tensor '" + owned.name(tensor) +
                      "' cannot be published: its elements do not fill a range of memory."});
      }
      ranges.push_back({0, shard.address, bytes});
    }
  }
  return ranges;
}

}  // namespace

class Publisher::Impl : public Node {
 public:
  explicit Impl(Endpoint endpoint) : Node(std::move(endpoint)) { start(); }
  ~Impl() override {
    stop();
    for (const auto& [version, publication] : publications_) publication->end_deltas();
  }

  Status publish(std::uint64_t version, Manifest owned, std::optional<std::uint64_t> base);
  Status withdraw(std::uint64_t version);
  std::size_t copies(std::uint64_t version) const;
  Status wait_copies(std::uint64_t version, std::size_t count, std::chrono::nanoseconds timeout);

 private:
  struct Waiting {
    LinkPtr link;
    TableAt demand;
  };
  /// Those who want the same. Their demand is read from the first one, and planned; then each chunk is
  /// hashed, and what is hashed can be had.
  struct Class {
    std::unique_ptr<TableRead> reading;  // of the first that waits
    std::vector<Waiting> waiting;
    std::unique_ptr<Holding> holding;  // null: not planned yet
    std::unique_ptr<OwnedPieces> pieces;
    std::vector<Digest> hashed;          // of chunks, under way, in order
    std::unique_ptr<DeltaMaker> deltas;  // refers to the others; null: none, or not any more
  };
  struct Publication {
    Key key;
    Key base;
    Manifest owned;
    Lent lent;
    std::unique_ptr<LentTable> table;
    std::map<std::uint64_t, Class> classes;  // by their demand
    std::set<std::uint64_t> copies;
    std::uint64_t bytes = 0;
    std::uint64_t given = 0;

    /// No thread reads its memory or that of its base for deltas any more.
    void end_deltas() {
      for (auto& [demand, among] : classes) among.deltas = nullptr;
    }
  };

  void on_open(const LinkPtr& link) override;
  void on_lost(const LinkPtr& link) override;
  void on_message(const LinkPtr& link, Message message) override;
  bool step() override;
  void tell(Samples& samples) override;
  bool busy() const override { return hashing_; }

  Publication* find(const Key& key);
  void join(const LinkPtr& link, const Join& join);
  void plan(Publication& publication, std::uint64_t demand);
  void plan_base(const Publication& publication, Class& among);
  bool hash_next(const Publication& publication, Class& among);
  void give_up(Class& among, const std::string& why);
  void read_first(Class& among, const Key& key);
  void refuse_first(Class& among, const Key& key, const std::string& why);
  void refuse_all(Class& among, const Key& key, const std::string& why);

  Jobs jobs_{wake()};
  std::map<std::uint64_t, std::unique_ptr<Publication>> publications_;  // by version
  bool hashing_ = false;                                                // at the last step
};

Status Publisher::Impl::publish(std::uint64_t version, Manifest owned, std::optional<std::uint64_t> base) {
  auto fresh = std::make_unique<Publication>();
  fresh->key = {version, draw_publication(), 0};
  {
    const std::lock_guard lock(mutex_);
    if (publications_.contains(version)) return published_already(version);
    if (base) {
      const auto found = publications_.find(*base);
      if (found == publications_.end()) {
        return tl::unexpected(
            Error{ErrorCode::kNotFound, "Version " + std::to_string(version) + " has no base: version " +
                                            std::to_string(*base) + " is not published here."});
      }
      fresh->base = found->second->key;
    }
  }
  auto ranges = ranges_of(owned);
  if (!ranges) return tl::unexpected(std::move(ranges.error()));
  for (const Piece& range : *ranges) fresh->bytes += range.bytes;
  fresh->owned = std::move(owned);
  auto lent = Lent::make(endpoint(), gpu_regions(), std::move(*ranges));
  if (!lent) return tl::unexpected(std::move(lent.error()));
  fresh->lent = std::move(*lent);
  auto table = LentTable::make(endpoint(), OwnedTable::encode(fresh->owned, fresh->lent.descriptors()));
  if (!table) return tl::unexpected(std::move(table.error()));
  fresh->table = std::move(*table);
  const std::lock_guard lock(mutex_);
  const Offer offer{fresh->key, fresh->base};
  if (!publications_.emplace(version, std::move(fresh)).second) {
    return published_already(version);
  }
  send_all(offer);
  wake()->ring();  // answers are coming
  return {};
}

Status Publisher::Impl::withdraw(std::uint64_t version) {
  std::unique_ptr<Publication> gone;  // ends without the lock: it waits for peers
  const std::lock_guard lock(mutex_);
  const auto found = publications_.find(version);
  if (found == publications_.end()) {
    return tl::unexpected(
        Error{ErrorCode::kNotFound, "Version " + std::to_string(version) + " is not published."});
  }
  gone = std::move(found->second);
  publications_.erase(found);
  gone->end_deltas();  // with the lock: their base may be withdrawn as soon as it is gone
  for (const auto& [number, other] : publications_) {
    if (other->base == gone->key) other->end_deltas();
  }
  send_all(Withdraw{gone->key});
  return {};
}

std::size_t Publisher::Impl::copies(std::uint64_t version) const {
  const std::lock_guard lock(mutex_);
  const auto found = publications_.find(version);
  return found == publications_.end() ? 0 : found->second->copies.size();
}

Status Publisher::Impl::wait_copies(std::uint64_t version, std::size_t count,
                                    std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto enough = [&] {
    const auto found = publications_.find(version);
    return found != publications_.end() && found->second->copies.size() >= count;
  };
  if (changed_.wait_until(lock, deadline_of(timeout), enough)) return {};
  return tl::unexpected(Error{ErrorCode::kTimedOut, "Version " + std::to_string(version) + " has not " +
                                                        std::to_string(count) + " copies yet."});
}

void Publisher::Impl::on_open(const LinkPtr& link) {
  for (const auto& [version, publication] : publications_)
    send(link, Offer{publication->key, publication->base});
}

void Publisher::Impl::on_lost(const LinkPtr& link) {
  for (auto& [version, publication] : publications_) {
    for (auto& [demand, among] : publication->classes) {
      if (among.holding) among.holding->forget(link);
      const bool first = !among.waiting.empty() && among.waiting[0].link == link;
      std::erase_if(among.waiting, [&](const Waiting& one) { return one.link == link; });
      if (first) read_first(among, {version, publication->key.publication, demand});
    }
    std::erase_if(publication->classes, [](const auto& row) {
      const Class& among = row.second;
      return among.holding ? among.holding->members().size() <= 1 : among.waiting.empty();
    });
  }
}

Publisher::Impl::Publication* Publisher::Impl::find(const Key& key) {
  const auto found = publications_.find(key.version);
  if (found == publications_.end() || !found->second->key.same_publication(key)) return nullptr;
  return found->second.get();
}

void Publisher::Impl::on_message(const LinkPtr& link, Message message) {
  if (const auto* wish = std::get_if<Join>(&message)) return join(link, *wish);
  const Key key = std::visit([](const auto& kind) { return kind.key; }, message);
  Publication* publication = find(key);
  if (publication == nullptr) return;
  if (std::holds_alternative<Done>(message)) publication->copies.insert(link->peer.id);
  if (const auto* took = std::get_if<Took>(&message)) publication->given += took->bytes;
  const auto found = publication->classes.find(key.demand);
  if (std::holds_alternative<Follow>(message) && found != publication->classes.end() &&
      found->second.holding) {
    found->second.holding->follow(link);
  }
}

void Publisher::Impl::join(const LinkPtr& link, const Join& join) {
  Publication* publication = find(join.key);
  if (publication == nullptr) return send(link, Refuse{join.key, "it is not published here any more"});
  if (!publication->classes.contains(join.key.demand) && publication->classes.size() >= kMostClasses) {
    return send(link, Refuse{join.key, "too many others want other shards of it"});
  }
  Class& among = publication->classes[join.key.demand];
  if (among.holding && !among.pieces) return send(link, Refuse{join.key, "its memory cannot be read"});
  if (among.holding) return among.holding->admit(link);
  among.waiting.push_back({link, join.demand});
  if (!among.reading) read_first(among, join.key);
}

void Publisher::Impl::read_first(Class& among, const Key& key) {
  among.reading = nullptr;
  while (!among.reading && !among.waiting.empty()) {
    auto reading = TableRead::start(*this, among.waiting[0].link, among.waiting[0].demand);
    if (!reading) {
      refuse_first(among, key, reading.error().message);
    } else {
      among.reading = std::move(*reading);
    }
  }
}

/// Its demand could not be had; those behind it may have the same.
void Publisher::Impl::refuse_first(Class& among, const Key& key, const std::string& why) {
  send(among.waiting[0].link, Refuse{key, why});
  among.waiting.erase(among.waiting.begin());
}

void Publisher::Impl::refuse_all(Class& among, const Key& key, const std::string& why) {
  for (const Waiting& one : among.waiting) send(one.link, Refuse{key, why});
  among = Class();
}

void Publisher::Impl::plan(Publication& publication, std::uint64_t demand) {
  Class& among = publication.classes[demand];
  const Key key{publication.key.version, publication.key.publication, demand};
  const auto reading = std::move(among.reading);
  const Status had = reading->status();
  if (!had || digest_of(reading->bytes()) != demand) {
    refuse_first(among, key, had ? "what it wants has another digest" : had.error().message);
    return read_first(among, key);
  }
  auto wanted = Demand::decode(reading->bytes());
  if (!wanted) return refuse_all(among, key, wanted.error().message);
  auto holding = std::make_unique<Holding>(*this, key, std::move(*wanted), publication.table->at());
  auto pieces = OwnedPieces::make(publication.owned, holding->demand());
  if (!pieces) return refuse_all(among, key, pieces.error().message);
  among.holding = std::move(holding);
  among.pieces = std::move(*pieces);
  if (publication.base != Key()) plan_base(publication, among);
  among.holding->learn(self());
  for (const Waiting& one : std::exchange(among.waiting, {})) among.holding->admit(one.link);
}

void Publisher::Impl::plan_base(const Publication& publication, Class& among) {
  const Publication* base = find(publication.base);
  if (base == nullptr) return;
  auto pieces = OwnedPieces::make(base->owned, among.holding->demand());
  if (!pieces) return warn_of_no_delta(base->key, "it differs in more than bytes: " + pieces.error().message);
  const VersionMemory fresh{among.pieces.get(), &publication.lent};
  among.deltas =
      std::make_unique<DeltaMaker>(endpoint(), jobs_, *among.holding, fresh, std::move(*pieces), base->lent);
  among.holding->give_deltas();
}

/// Its memory cannot be read: a GPU has failed, or the memory was freed.
void Publisher::Impl::give_up(Class& among, const std::string& why) {
  Key key = among.holding->key();
  write_log(LogLevel::kError,
            "Weights: version " + std::to_string(key.version) + " cannot be given any more: " + why);
  key.demand = 0;
  for (const Member& member : among.holding->members()) send(link_to(member.id), Withdraw{key});
  among.hashed.clear();
  among.pieces = nullptr;
}

/// Tells of what is hashed, and starts more: chunks are hashed in order, in the memory of GPUs several at
/// once. False: nothing has come of it yet.
bool Publisher::Impl::hash_next(const Publication& publication, Class& among) {
  Holding& holding = *among.holding;
  if (among.deltas) {
    const auto made = among.deltas->step();
    if (made) return *made;
    warn_of_no_delta(publication.base, made.error().message);
    among.deltas = nullptr;  // what is left goes whole, if it can be read
  }
  bool any = false;
  const std::uint32_t chunk = holding.count() + static_cast<std::uint32_t>(among.hashed.size());
  if (chunk < holding.demand().chunks() && among.hashed.size() < kHashedAtOnce) {
    auto digest = publication.lent.digest(
        endpoint(), among.pieces->within(holding.demand().begin(chunk), holding.demand().end(chunk)));
    if (!digest) return give_up(among, digest.error().message), true;
    among.hashed.push_back(std::move(*digest));
    any = true;
  }
  while (!among.hashed.empty() && among.hashed[0].done()) {
    const auto value = among.hashed[0].wait(std::chrono::nanoseconds(0));
    if (!value) return give_up(among, value.error().message), true;
    among.hashed.erase(among.hashed.begin());
    holding.add(holding.count(), *value);
    any = true;
  }
  return any;
}

void Publisher::Impl::tell(Samples& samples) {
  for (const auto& [version, publication] : publications_) {
    samples.published(version, publication->bytes, publication->copies.size(), publication->given);
  }
}

bool Publisher::Impl::step() {
  bool more = false;
  hashing_ = false;
  for (auto& [version, publication] : publications_) {
    for (auto& [demand, among] : publication->classes) {
      if (among.reading && among.reading->done()) plan(*publication, demand);
      if (!among.pieces || among.holding->whole()) continue;
      hashing_ = true;
      more |= hash_next(*publication, among);
    }
  }
  if (!hashing_) jobs_.rest();
  return more;
}

Publisher::Publisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Publisher::Publisher(Publisher&&) noexcept = default;
Publisher& Publisher::operator=(Publisher&&) noexcept = default;
Publisher::~Publisher() = default;

Result<Publisher> Publisher::create(const Options& options) {
  auto endpoint = Endpoint::create(options);
  if (!endpoint) return tl::unexpected(std::move(endpoint.error()));
  return Publisher(std::make_unique<Impl>(std::move(*endpoint)));
}

std::string Publisher::address() const { return impl_->self().address; }
std::uint16_t Publisher::port() const { return impl_->self().port; }
Status Publisher::publish(std::uint64_t version, Manifest owned, std::optional<std::uint64_t> base) {
  return impl_->publish(version, std::move(owned), base);
}
Status Publisher::withdraw(std::uint64_t version) { return impl_->withdraw(version); }
std::size_t Publisher::copies(std::uint64_t version) const { return impl_->copies(version); }
Status Publisher::wait_copies(std::uint64_t version, std::size_t count,
                              std::chrono::nanoseconds timeout) const {
  return impl_->wait_copies(version, count, timeout);
}

}  // namespace p2p::weights
