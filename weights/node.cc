// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "node.h"

#include <algorithm>
#include <utility>

#include "p2p/write_log.h"

namespace p2p::weights {

namespace {

using namespace std::chrono_literals;

// Messages and what is read wake the thread. Nothing tells of a peer that connects, nor of a digest that a
// GPU has made: how often these are looked for at least, while weights move and else.
constexpr std::chrono::milliseconds kBusyTurn{1};
constexpr std::chrono::milliseconds kIdleTurn{10};
// And at most: short against the time of a chunk over NVLink. After something has happened it is looked again
// after this, then in pauses that grow as the time does.
constexpr std::chrono::microseconds kShortestTurn{50};
constexpr int kGrowth = 4;

}  // namespace

void Wake::ring() {
  {
    const std::lock_guard lock(mutex_);
    ringing_ = true;
  }
  rang_.notify_all();
}

bool Wake::wait(std::chrono::nanoseconds most) {
  std::unique_lock lock(mutex_);
  rang_.wait_for(lock, most, [&] { return ringing_; });
  return std::exchange(ringing_, false);
}

Node::Node(Endpoint endpoint) : endpoint_(std::move(endpoint)) {
  self_ = {endpoint_.incarnation(), endpoint_.address(), endpoint_.port(), 0};
  endpoint_.set_note(encode_note(self_.address, self_.port));
}

void Node::start() {
  auto added = endpoint_.add_metrics(Samples::families(), [this] {
    Samples samples;
    const std::lock_guard lock(mutex_);
    tell(samples);
    return samples.take();
  });
  if (added) metrics_ = std::move(*added);
  if (!added) write_log(LogLevel::kError, "Weights: no metrics: " + added.error().message);
  thread_ = std::thread([this] { run(); });
}

void Node::stop() {
  metrics_.end();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_->ring();
  if (thread_.joinable()) thread_.join();
}

void Node::run() {
  using Clock = std::chrono::steady_clock;
  Clock::time_point happened = Clock::now();
  for (;;) {
    bool more = false;
    bool often = false;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      more = turn();
      often = busy();
    }
    changed_.notify_all();
    if (!more) {
      const auto most =
          std::max<std::chrono::nanoseconds>((Clock::now() - happened) / kGrowth, kShortestTurn);
      more = wake_->wait(std::min<std::chrono::nanoseconds>(most, often ? kBusyTurn : kIdleTurn));
    }
    if (more) happened = Clock::now();
  }
}

/// True: there is more to do at once, or messages came.
bool Node::turn() {
  accept();
  bool more = false;
  const std::vector<LinkPtr> links = links_;  // hooks may dial
  for (const LinkPtr& link : links) more |= poll(link);
  std::erase_if(links_, [](const LinkPtr& link) { return link->lost; });
  more |= step();
  return more;
}

void Node::accept() {
  while (auto connection = endpoint_.accept(0ns)) {
    auto link = std::make_shared<Link>();
    link->connection = std::move(*connection);
    watch(*link);
    links_.push_back(std::move(link));
  }
}

void Node::watch(const Link& link) const {
  link.connection.on_change([wake = wake_] { wake->ring(); });
  link.connection.on_notification([wake = wake_] { wake->ring(); });
}

/// True if messages came.
bool Node::poll(const LinkPtr& link) {
  if (link->lost) return false;
  const ConnectionState state = link->connection.state();
  if (!link->open && state == ConnectionState::kOpen) opened(link);
  if (link->lost || !link->open) {
    if (link->lost || state != ConnectionState::kClosed) return false;
    const std::string note = link->connection.peer().note;  // it may have refused this one at once
    if (!note.empty() && !decode_note(note)) return refuse(link, note), false;
    return lose(link, "it could not be reached"), false;
  }
  const auto messages = link->connection.take_notifications();
  for (const std::string& bytes : messages) {
    auto message = decode(bytes);
    if (!message) {
      lose(link, message.error().message);
      return true;
    }
    on_message(link, std::move(*message));
    if (link->lost) return true;
  }
  if (state != ConnectionState::kOpen) lose(link, "the connection has ended");
  return !messages.empty();
}

void Node::opened(const LinkPtr& link) {
  const Peer peer = link->connection.peer();
  const auto place = decode_note(peer.note);
  if (!place) return refuse(link, peer.note);
  if (link->peer.id != 0 && link->peer.id != peer.incarnation) {
    return lose(link, "another process listens at its address");
  }
  link->peer = {peer.incarnation, place->first, place->second, 0};
  link->open = true;
  on_open(link);
}

void Node::refuse(const LinkPtr& link, const std::string& note) {
  const Peer peer = link->connection.peer();
  if (!std::exchange(warned_, true)) {  // once: it may come again each second
    write_log(LogLevel::kWarning,
              "Weights: " + HostPort{peer.address, peer.port}.text() + " is refused: " + why_refused(note));
  }
  lose(link, why_refused(note));
}

void Node::lose(const LinkPtr& link, const std::string& why) {
  link->lost = true;
  const Status status = link->connection.status();
  link->why = why + (status ? "" : ": " + status.error().message);
  write_log(link->open ? LogLevel::kInfo : LogLevel::kDebug,
            "Weights: " + link->peer.place() + " is given up: " + link->why);
  (void)link->connection.close(0ns);
  on_lost(link);
}

LinkPtr Node::dial(const Member& to) {
  for (const LinkPtr& link : links_) {
    const bool same_place = link->peer.address == to.address && link->peer.port == to.port;
    if (!link->lost && (to.id != 0 ? link->peer.id == to.id : same_place)) return link;
  }
  auto link = std::make_shared<Link>();
  link->peer = to;
  link->connection = endpoint_.connect_async(to.address, to.port);
  watch(*link);
  links_.push_back(link);
  return link;
}

LinkPtr Node::link_to(std::uint64_t id) const {
  for (const LinkPtr& link : links_) {
    if (link->open && !link->lost && link->peer.id == id) return link;
  }
  return nullptr;
}

void Node::send(const LinkPtr& link, const Message& message) const {
  if (!link || !link->open || link->lost) return;
  const Transfer sent = link->connection.notify(encode(message));
  if (!sent.done() || sent.status() || sent.status().error().code != ErrorCode::kMessageTooLong) return;
  for (const Message& shorter : shortened(message)) send(link, shorter);
}

void Node::send_all(const Message& message) const {
  for (const LinkPtr& link : links_) send(link, message);
}

}  // namespace p2p::weights
