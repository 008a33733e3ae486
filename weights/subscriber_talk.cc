// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "subscriber_impl.h"

namespace p2p::weights {

namespace {

constexpr std::size_t kMostOffers = 4096;
constexpr std::chrono::seconds kRedial{1};
// A publisher says what it offers as soon as a link is open.
constexpr std::chrono::seconds kHear{1};

}  // namespace

Offer Subscriber::Impl::offer_of(const Held& held) {
  return {held.holding->key().whole(), held.base.whole()};
}

void Subscriber::Impl::on_open(const LinkPtr& link) {
  for (Directory& directory : directories_) {
    if (directory.link == link) directory.opened = Clock::now(), directory.why.clear();
  }
  for (const auto& [version, held] : held_) {
    if (!held->holding || !held->holding->whole() || held->fetch) continue;
    send(link, Done{held->holding->key()});  // what was said before may have been lost with the link
    send(link, offer_of(*held));
  }
}

void Subscriber::Impl::on_lost(const LinkPtr& link) {
  std::erase_if(offers_, [&](const Offered& offer) { return offer.link == link; });
  for (Directory& directory : directories_) {
    if (directory.link == link) directory.why = link->why;
  }
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

Held* Subscriber::Impl::find(const Key& key) {
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
  if (const auto* took = std::get_if<Took>(&message)) held.holding->account().given += took->bytes;
  if (const auto* tell = std::get_if<Tell>(&message)) {
    held.holding->learn(tell->member);
    if (held.fetch) held.fetch->tell(link, tell->member);
    if (tell->member.id == self().id && !std::exchange(held.admitted, true))
      held.joined = Clock::now() - held.begun;
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

/// Who of those named cannot be had, to be appended to an error.
std::string Subscriber::Impl::unreached() const {
  std::string text;
  for (const Directory& directory : directories_) {
    if (!directory.why.empty()) text += "; " + directory.place.place() + ": " + directory.why;
  }
  return text;
}

/// It has not had the time to say whether it offers the version.
bool Subscriber::Impl::may_offer(const Held& held, const Directory& directory) const {
  if (!directory.link || !directory.link->open) return directory.why.empty();
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
    held.offered = Clock::now() - held.begun;
    const Key key{held.version, publication, digest_of(held.wish->bytes)};
    held.holding = std::make_unique<Holding>(*this, key, held.demand, held.table->at());
    held.fetch = std::make_unique<Fetch>(*this, *held.holding, held.pieces, held.lent, stall_);
  }
  if (choice->base != Key() && held.base == Key()) use_base(held, choice->base);
  held.directory = choice->link;
  send(choice->link, Join{held.holding->key(), held.wish->at()});
}

/// The version's deltas are based on that publication: whether it is here.
void Subscriber::Impl::use_base(Held& held, const Key& publication) {
  held.base = {publication.version, publication.publication, held.holding->key().demand};
  const Held* at = held.replaced == held.base ? &held : find(held.base);
  const bool whole = at == &held || (at != nullptr && at->holding->whole());
  if (!whole) {
    return held.fetch->use_base(std::nullopt,
                                "version " + std::to_string(publication.version) +
                                    ", on which they are based, is not here as it was published there");
  }
  held.holding->give_deltas();
  held.fetch->use_base(VersionMemory{&at->pieces, &at->lent}, "");
}

bool Subscriber::Impl::step() {
  redial();
  if (staging_ == nullptr || staging_->failed) return false;
  Held& held = *staging_;
  if (!held.directory) join(held);
  if (!held.fetch) return false;
  const auto more = held.fetch->step();
  held.fetch->note_wait();
  if (!more) held.failed = more.error();
  return more && *more;
}

}  // namespace p2p::weights
