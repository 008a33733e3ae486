// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/lanes.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/session_link.h"

namespace p2p::engine {
namespace {

// More channels than this between two processes is a mistake or an attack.
constexpr std::size_t kMaxChannels = 64;

}  // namespace

Lanes::Lanes(std::shared_ptr<Context> context, SendMessage send, std::function<void()> changed,
             std::shared_ptr<Words> words)
    : context_(std::move(context)),
      send_(std::move(send)),
      changed_(std::move(changed)),
      router_(std::make_shared<Router>(context_->transports(), context_->options.required)),
      words_(std::move(words)),
      entries_(context_->transports().size()) {}

void Lanes::start(Role role, const SessionPeer& peer) {
  {
    MutexLock lock(mutex_);
    role_ = role;
    peer_ = peer;
    started_ = true;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      Entry& entry = entries_[i];
      const TransportSlot& own = context_->transports()[i];
      if (!own.reason.empty()) {
        router_->close(i, own.reason);
        continue;
      }
      for (const wire::TransportStatus& theirs : peer.introduction.transports) {
        if (theirs.name != own.transport->name()) continue;
        entry.expected = theirs.reason.empty();
        router_->close(i, entry.expected ? "not connected yet" : "the peer cannot use it: " + theirs.reason);
      }
      if (!entry.expected || role != Role::kConnector) continue;
      auto addresses = open(entry, kMaxChannels);
      if (addresses) {
        entry.offered = true;
        send_(wire::ChannelOffer{std::string(own.transport->name()), std::move(*addresses)});
      } else {
        give_up(entry, addresses.error().message);
      }
    }
    dirty_ = true;
  }
  sweep();
}

Result<std::vector<Bytes>> Lanes::open(Entry& entry, std::size_t most) {
  const std::size_t index = index_of(entry);
  Transport& transport = *context_->transports()[index].transport;
  entry.lane = std::make_shared<Lane>(Policy::of(transport.capabilities(), context_->options));
  std::vector<Bytes> addresses;
  for (const Rail& rail : transport.rails(peer_.path)) {
    for (unsigned i = transport.channels_per_rail(rail); i != 0 && addresses.size() < most; --i) {
      auto control = std::make_unique<SessionLink>(send_, std::string(transport.name()),
                                                   static_cast<std::uint32_t>(addresses.size()));
      auto ear = std::make_unique<WordPort>(words_);
      auto channel = transport.open_channel({.role = role_,
                                             .rail = rail,
                                             .path = peer_.path,
                                             .local_incarnation = context_->regions->incarnation(),
                                             .peer_incarnation = peer_.incarnation,
                                             .secret = peer_.secret,
                                             .control = control.get(),
                                             .words = ear.get()});
      if (!channel) return tl::unexpected(channel.error());
      addresses.push_back((*channel)->address());
      Slot::Setup setup{rail.name, std::move(control), std::move(*channel), nullptr, fence_, std::move(ear)};
      setup.report = reporter(index);
      entry.slots.push_back(std::make_shared<Slot>(least_loaded(), entry.lane, std::move(setup)));
    }
  }
  if (addresses.empty()) return fail(ErrorCode::kUnavailable, "no interface towards the peer");
  return addresses;
}

// Hands what becomes of a channel over to the reactor's thread.
std::function<void(const Status&)> Lanes::reporter(std::size_t transport) {
  return [weak = weak_from_this(), &reactor = *context_->reactor, transport](const Status& status) {
    reactor.post([weak, transport, status] {
      if (const auto lanes = weak.lock()) lanes->channel_changed(transport, status);
    });
  };
}

Status Lanes::connect(Entry& entry, const std::vector<Bytes>& addresses) {
  for (std::size_t i = 0; i < entry.slots.size(); ++i) {
    if (Status connected = entry.slots[i]->connect(addresses[i]); !connected) return connected;
  }
  entry.attached = true;
  for (const auto& slot : entry.slots) slot->start();
  return {};
}

Status Lanes::on(const wire::ChannelOffer& offer) {
  {
    MutexLock lock(mutex_);
    if (closed_) return {};
    Entry* entry = find(offer.transport);
    if (role_ != Role::kAcceptor || entry == nullptr || !entry->expected || entry->offered ||
        offer.addresses.empty() || offer.addresses.size() > kMaxChannels) {
      return fail(ErrorCode::kProtocol, "an offer of {} {} channels that was not due", offer.addresses.size(),
                  offer.transport);
    }
    entry->offered = entry->answered = true;
    if (entry->local_done) {  // given up meanwhile
      send_(wire::ChannelAnswer{offer.transport, "given up meanwhile", {}});
    } else if (const Status taken = take_up(*entry, offer); !taken) {
      give_up(*entry, taken.error().message);
    }
  }
  sweep();
  return {};
}

Status Lanes::take_up(Entry& entry, const wire::ChannelOffer& offer) {
  auto addresses = open(entry, offer.addresses.size());
  if (!addresses) {
    send_(wire::ChannelAnswer{offer.transport, addresses.error().message, {}});
    return tl::unexpected(addresses.error());
  }
  const std::vector<Bytes> theirs(offer.addresses.begin(),
                                  offer.addresses.begin() + static_cast<std::ptrdiff_t>(addresses->size()));
  send_(wire::ChannelAnswer{offer.transport, "", std::move(*addresses)});
  return connect(entry, theirs);
}

Status Lanes::on(const wire::ChannelAnswer& answer) {
  {
    MutexLock lock(mutex_);
    if (closed_) return {};
    Entry* entry = find(answer.transport);
    // One answer to one offer: a second one would connect channels anew that workers have by now.
    if (role_ != Role::kConnector || entry == nullptr || !entry->offered || entry->answered) {
      return fail(ErrorCode::kProtocol, "an answer about {} channels that was not due", answer.transport);
    }
    entry->answered = true;
    if (entry->local_done) return {};  // given up meanwhile
    if (const Status taken = take_answer(*entry, answer); !taken) give_up(*entry, taken.error().message);
  }
  sweep();
  return {};
}

Status Lanes::take_answer(Entry& entry, const wire::ChannelAnswer& answer) {
  if (!answer.reason.empty()) {
    return fail(ErrorCode::kUnavailable, "the peer could not open its channels: {}", answer.reason);
  }
  if (answer.addresses.empty() || answer.addresses.size() > entry.slots.size()) {
    return fail(ErrorCode::kProtocol, "the peer answered with a wrong number of channels");
  }
  // The peer may take fewer than were offered.
  while (entry.slots.size() > answer.addresses.size()) {
    entry.slots.back()->mute();  // its end is no loss
    trash_.push_back(std::move(entry.slots.back()));
    entry.slots.pop_back();
  }
  return connect(entry, answer.addresses);
}

Status Lanes::on(const wire::ChannelsReady& ready) {
  {
    MutexLock lock(mutex_);
    if (closed_) return {};
    Entry* entry = find(ready.transport);
    const bool success = ready.reason.empty();
    if (entry == nullptr || !entry->expected || (success && !entry->answered) ||
        std::exchange(entry->peer_said, true)) {
      return fail(ErrorCode::kProtocol, "{} channels ready that were not due", ready.transport);
    }
    entry->peer_done = true;
    if (!success) give_up(*entry, "the peer gave it up: " + ready.reason);
    if (entry->local_done && entry->ready == entry->slots.size() && !entry->slots.empty()) {
      open_route(*entry);
    }
    dirty_ = true;
  }
  sweep();
  return {};
}

Status Lanes::on(wire::ChannelControl control) {
  MutexLock lock(mutex_);
  if (closed_) return {};
  Entry* entry = find(control.transport);
  if (entry == nullptr || !entry->answered) {
    return fail(ErrorCode::kProtocol, "a message for {} channel {} before it was connected",
                control.transport, control.channel);
  }
  if (entry->slots.empty()) return {};  // given up meanwhile
  if (control.channel >= entry->slots.size() || !entry->attached) {
    return fail(ErrorCode::kProtocol, "a message for {} channel {}: there are {}", control.transport,
                control.channel, entry->attached ? entry->slots.size() : 0);
  }
  entry->slots[control.channel]->control(std::move(control.message));
  return {};
}

// A channel of `transport` came up or went down.
void Lanes::channel_changed(std::size_t transport, const Status& status) {
  {
    MutexLock lock(mutex_);
    Entry& entry = entries_[transport];
    if (closed_ || entry.slots.empty()) return;
    if (!status) {
      // With channels left the lane lives on; its pieces went over to them.
      if (!entry.local_done || entry.lane->slots().empty()) give_up(entry, status.error().message);
      dirty_ = true;
    } else if (++entry.ready == entry.slots.size() && !entry.local_done) {
      local_done(entry);
    }
  }
  sweep();
}

void Lanes::local_done(Entry& entry) {
  const Transport& transport = *context_->transports()[index_of(entry)].transport;
  entry.local_done = true;
  send_(wire::ChannelsReady{std::string(transport.name()), ""});
  if (entry.peer_done) open_route(entry);
  dirty_ = true;
}

void Lanes::open_route(const Entry& entry) { router_->open(index_of(entry), entry.lane); }

void Lanes::give_up(Entry& entry, std::string reason) {
  const std::size_t index = index_of(entry);
  const std::string name(context_->transports()[index].transport->name());
  if (router_->usable(index)) log(LogLevel::kInfo, "{} is lost: {}", name, reason);
  if (!std::exchange(entry.local_done, true)) send_(wire::ChannelsReady{name, reason});
  router_->close(index, std::move(reason));
  std::move(entry.slots.begin(), entry.slots.end(), std::back_inserter(trash_));
  entry.slots.clear();
  dirty_ = true;
}

void Lanes::expire(const Error& error) {
  {
    MutexLock lock(mutex_);
    for (Entry& entry : entries_) {
      if (!entry.expected || (entry.local_done && entry.peer_done)) continue;
      give_up(entry, error.message);
      entry.peer_done = true;
    }
  }
  sweep();
}

void Lanes::sweep() {
  std::vector<std::shared_ptr<Slot>> trash;
  bool changed = false;
  {
    MutexLock lock(mutex_);
    trash.swap(trash_);
    changed = std::exchange(dirty_, false) && !closed_;
  }
  const Error error{ErrorCode::kPeerGone, "the channel was given up"};
  for (const auto& slot : trash) slot->stop(error);
  if (changed) changed_();
}

void Lanes::close(const Error& error) {
  std::vector<Entry> entries;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    entries.resize(entries_.size());
    entries.swap(entries_);
    router_->close_all(error.message);
  }
  for (const Entry& entry : entries) {
    if (!entry.lane) continue;
    Deferred deferred;
    entry.lane->close(error, deferred);
    deferred.run();
    for (const auto& slot : entry.slots) slot->stop(error);
  }
  sweep();
}

bool Lanes::settled() const {
  MutexLock lock(mutex_);
  return started_ && std::all_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
           return !entry.expected || (entry.local_done && entry.peer_done);
         });
}

std::uint64_t Lanes::retried() const {
  MutexLock lock(mutex_);
  std::uint64_t sum = 0;
  for (const Entry& entry : entries_) sum += entry.lane ? entry.lane->retried() : 0;
  return sum;
}

void Lanes::abandon(const std::shared_ptr<TransferState>& state) const {
  std::vector<std::shared_ptr<Slot>> slots;
  {
    MutexLock lock(mutex_);
    for (const Entry& entry : entries_) slots.insert(slots.end(), entry.slots.begin(), entry.slots.end());
  }
  for (const auto& slot : slots) slot->abandon(state);
}

Lanes::Entry* Lanes::find(const std::string& transport) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (context_->transports()[i].transport->name() == transport) return &entries_[i];
  }
  return nullptr;
}

std::size_t Lanes::index_of(const Entry& entry) const {
  return static_cast<std::size_t>(&entry - entries_.data());
}

Worker& Lanes::least_loaded() const {
  return **std::min_element(context_->workers.begin(), context_->workers.end(),
                            [](const auto& a, const auto& b) { return a->load() < b->load(); });
}

}  // namespace p2p::engine
