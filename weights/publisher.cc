// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/weights/publisher.h"

#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "digest.h"
#include "holding.h"
#include "table_read.h"

namespace p2p::weights {

namespace {

// The most different demands for one version.
constexpr std::size_t kMostClasses = 1024;

std::uint64_t draw_publication() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

/// The shards of a manifest as ranges of memory. kInvalidArgument where elements do not follow one another
/// upwards: what lies between them would be readable, too.
Result<std::vector<Piece>> ranges_of(const Manifest& owned) {
  std::vector<Piece> ranges;
  for (std::uint32_t tensor = 0; tensor < owned.tensors(); ++tensor) {
    for (std::size_t at = 0; at < owned.shards(tensor); ++at) {
      const Shard shard = owned.shard(tensor, at);
      std::uint64_t bytes = owned.dtype(tensor).bytes, extent = bytes;
      bool forward = true;
      for (std::size_t d = 0; d < shard.size.size(); ++d) {
        bytes *= shard.size[d];
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
  ~Impl() override { stop(); }

  Status publish(std::uint64_t version, Manifest owned);
  Status withdraw(std::uint64_t version);
  std::size_t copies(std::uint64_t version) const;
  Status wait_copies(std::uint64_t version, std::size_t count, std::chrono::nanoseconds timeout);

 private:
  /// Those who want the same. Their demand is read from the first one, and planned; then each chunk is
  /// hashed, and what is hashed can be had.
  struct Class {
    std::unique_ptr<TableRead> reading;
    std::vector<LinkPtr> waiting;
    std::unique_ptr<Holding> holding;  // null: not planned yet
    std::unique_ptr<OwnedPieces> pieces;
  };
  struct Publication {
    Key key;
    Manifest owned;
    Lent lent;
    std::unique_ptr<LentTable> table;
    std::map<std::uint64_t, Class> classes;  // by their demand
    std::set<std::uint64_t> copies;
  };

  void on_open(const LinkPtr& link) override;
  void on_lost(const LinkPtr& link) override;
  void on_message(const LinkPtr& link, Message message) override;
  bool step() override;
  bool busy() const override { return moving_; }

  Publication* find(const Key& key);
  void join(const LinkPtr& link, const Join& join);
  void plan(Publication& publication, std::uint64_t demand);
  void hash_next(Class& among);
  void refuse(Class& among, const Key& key, const std::string& why);

  std::map<std::uint64_t, std::unique_ptr<Publication>> publications_;  // by version
  bool moving_ = false;                                                 // some class is not whole everywhere
};

Status Publisher::Impl::publish(std::uint64_t version, Manifest owned) {
  auto ranges = ranges_of(owned);
  if (!ranges) return tl::unexpected(std::move(ranges.error()));
  auto fresh = std::make_unique<Publication>();
  fresh->key = {version, draw_publication(), 0};
  fresh->owned = std::move(owned);
  auto lent = Lent::make(endpoint(), std::move(*ranges));
  if (!lent) return tl::unexpected(std::move(lent.error()));
  fresh->lent = std::move(*lent);
  auto table = LentTable::make(endpoint(), OwnedTable::encode(fresh->owned, fresh->lent.descriptors()));
  if (!table) return tl::unexpected(std::move(table.error()));
  fresh->table = std::move(*table);
  const std::lock_guard lock(mutex_);
  const Key key = fresh->key;
  if (!publications_.emplace(version, std::move(fresh)).second) {
    return tl::unexpected(
        Error{ErrorCode::kInvalidArgument, "Version " + std::to_string(version) + " is published already."});
  }
  send_all(Offer{key});
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
  if (changed_.wait_for(lock, timeout, enough)) return {};
  return tl::unexpected(Error{ErrorCode::kTimedOut, "Version " + std::to_string(version) + " has not " +
                                                        std::to_string(count) + " copies yet."});
}

void Publisher::Impl::on_open(const LinkPtr& link) {
  for (const auto& [version, publication] : publications_) send(link, Offer{publication->key});
}

void Publisher::Impl::on_lost(const LinkPtr& link) {
  for (auto& [version, publication] : publications_) {
    for (auto& [demand, among] : publication->classes) {
      std::erase(among.waiting, link);
      if (among.holding) among.holding->forget(link);
    }
    std::erase_if(publication->classes, [](const auto& row) {
      const Class& among = row.second;
      return among.holding ? among.holding->members().size() <= 1 : among.waiting.empty();
    });
  }
}

Publisher::Impl::Publication* Publisher::Impl::find(const Key& key) {
  const auto found = publications_.find(key.version);
  if (found == publications_.end() || found->second->key.publication != key.publication) return nullptr;
  return found->second.get();
}

void Publisher::Impl::on_message(const LinkPtr& link, Message message) {
  if (const auto* wish = std::get_if<Join>(&message)) return join(link, *wish);
  const Key key = std::visit([](const auto& kind) { return kind.key; }, message);
  Publication* publication = find(key);
  if (publication == nullptr) return;
  if (std::holds_alternative<Done>(message)) publication->copies.insert(link->peer.id);
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
  if (among.holding) return among.holding->admit(link);
  among.waiting.push_back(link);
  if (among.reading) return;
  auto reading = TableRead::start(*this, link, join.demand);
  if (!reading) return refuse(among, join.key, reading.error().message);
  among.reading = std::move(*reading);
}

void Publisher::Impl::refuse(Class& among, const Key& key, const std::string& why) {
  for (const LinkPtr& link : among.waiting) send(link, Refuse{key, why});
  among = Class();
}

void Publisher::Impl::plan(Publication& publication, std::uint64_t demand) {
  Class& among = publication.classes[demand];
  const Key key{publication.key.version, publication.key.publication, demand};
  const auto reading = std::move(among.reading);
  if (auto status = reading->status(); !status) return refuse(among, key, status.error().message);
  if (digest_of(reading->bytes()) != demand) return refuse(among, key, "what it wants has another digest");
  auto wanted = Demand::decode(reading->bytes());
  if (!wanted) return refuse(among, key, wanted.error().message);
  auto holding =
      std::make_unique<Holding>(*this, key, std::move(*wanted), publication.table->region.descriptor());
  auto pieces = OwnedPieces::make(publication.owned, holding->demand());
  if (!pieces) return refuse(among, key, pieces.error().message);
  among.holding = std::move(holding);
  among.pieces = std::move(*pieces);
  among.holding->learn(self());
  for (const LinkPtr& link : std::exchange(among.waiting, {})) among.holding->admit(link);
}

void Publisher::Impl::hash_next(Class& among) {
  Holding& holding = *among.holding;
  const std::uint32_t chunk = holding.count();  // they are hashed in order
  Digest digest;
  for (const Piece& piece :
       among.pieces->within(holding.demand().begin(chunk), holding.demand().end(chunk))) {
    digest.add(reinterpret_cast<const void*>(piece.address), piece.bytes);
  }
  holding.add(chunk, digest.value());
}

bool Publisher::Impl::step() {
  bool more = false;
  moving_ = false;
  for (auto& [version, publication] : publications_) {
    for (auto& [demand, among] : publication->classes) {
      if (among.reading && among.reading->done()) plan(*publication, demand);
      moving_ |= among.reading != nullptr;
      if (!among.holding || among.holding->whole()) continue;
      hash_next(among);
      more = true;
    }
  }
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
Status Publisher::publish(std::uint64_t version, Manifest owned) {
  return impl_->publish(version, std::move(owned));
}
Status Publisher::withdraw(std::uint64_t version) { return impl_->withdraw(version); }
std::size_t Publisher::copies(std::uint64_t version) const { return impl_->copies(version); }
Status Publisher::wait_copies(std::uint64_t version, std::size_t count,
                              std::chrono::nanoseconds timeout) const {
  return impl_->wait_copies(version, count, timeout);
}

}  // namespace p2p::weights
