// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/channel.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/error.h"
#include "drivers/crypto/crypto.h"
#include "drivers/cuda/device.h"
#include "drivers/nccl_net/sigpipe.h"

/// The channel's life: connecting, moving, ending. What messages mean is in messages.cc.
namespace p2p::nccl_net {
namespace {

constexpr std::size_t kMaxBatches = 64;
// Plugins do not tell of bytes, only of whole messages: for so long after one, more are likely on their way.
constexpr std::chrono::microseconds kMaybeMoving{1000};
// Between looks for them the processor rests: who asks all the time holds up those that bring the bytes.
constexpr std::chrono::microseconds kRest{5};
// Of a control message; no single message is larger than its rest up to 64 KiB.
constexpr std::size_t kPackedBytes = std::size_t{16} << 10;

/// Plugins want the CUDA device to be current in every call.
struct OnDevice {
  explicit OnDevice(const Flow& flow) {
    if (flow.device >= 0) guard.emplace(flow.device);
  }
  std::optional<cuda::DeviceGuard> guard;
};

}  // namespace

Result<std::unique_ptr<Channel>> NetChannel::open(const ChannelSetup& setup, ChannelConfig config) {
  auto polls = socket::PollSet::open();
  if (!polls) return tl::unexpected(polls.error());
  const OnDevice on_device(config.flow);
  auto listener =
      Listener::open(config.plugin, config.device, config.flow.device >= 0 ? cuda::copy_now : copy_from_host,
                     config.flow.device);
  if (!listener) return tl::unexpected(listener.error());
  return std::unique_ptr<Channel>(
      new NetChannel(setup, std::move(config), std::move(*polls), std::move(*listener)));
}

NetChannel::NetChannel(const ChannelSetup& setup, ChannelConfig config, socket::PollSet polls,
                       Listener listener)
    : setup_(setup), config_(std::move(config)), polls_(std::move(polls)), listener_(std::move(listener)) {
  deadline_ = Clock::now() + config_.connect_timeout;
  polls_.set_alarm(deadline_);
}

NetChannel::~NetChannel() {
  if (state_ == ChannelState::kFailed) return;
  const OnDevice on_device(config_.flow);
  outgoing_.reset();
  incoming_.reset();
  send_message(Bye{"the other side closed the channel"});
  flush();
}

/// Messages go out together at the end of each call.
void NetChannel::send_message(const Message& message) {
  pack(unsent_, message);
  if (unsent_.size() >= kPackedBytes) flush();
}

void NetChannel::flush() {
  if (!unsent_.empty()) setup_.control->send(unsent_);
  unsent_.clear();
}

std::vector<std::byte> NetChannel::address() const {
  return ChannelAddress{listener_.handle(), config_.flow.chunk_bytes, config_.device.properties.name}
      .encode();
}

Status NetChannel::connect(std::span<const std::byte> peer_address) {
  auto address = ChannelAddress::decode(peer_address);
  Status good;
  if (!address) good = tl::unexpected(address.error());
  if (good) good = check_handle(address->handle, config_.plugin->name());
  if (!good) {
    return fail(good.error().code, "connect {}: {}", config_.device.label(), good.error().message);
  }
  peer_ = std::move(*address);
  connector_.emplace(config_.plugin, device_towards(config_.devices, config_.device, peer_.nic),
                     peer_.handle);
  return {};
}

std::string NetChannel::describe() const {
  std::string place;
  if (config_.flow.unpacks()) place = " (UNPACK, pool in host memory)";
  if (config_.flow.device >= 0) place = fmt::format(" (UNPACK on CUDA device {})", config_.flow.device);
  return fmt::format("{} by {}{}", config_.device.label(), config_.plugin->name(), place);
}

bool NetChannel::busy() const {
  if (!completions_.empty() || !unsent_.empty()) return true;
  if (state_ == ChannelState::kConnecting) return connector_.has_value();
  if (state_ == ChannelState::kFailed) return false;
  return !outgoing_->idle() || !incoming_->idle();
}

/// Each direction's first message; only those in the session can make it.
Incoming::Proof NetChannel::proof(Role sender, const Handle& receiver) const {
  Bytes text;
  ByteWriter writer(text);
  writer.put(as_bytes("uccl nccl_net channel"));
  writer.put(static_cast<std::uint8_t>(sender));
  writer.put(ByteView(receiver));
  return crypto::hmac_sha256(setup_.secret, text);
}

Status NetChannel::open_outgoing(SendComm comm) {
  Flow flow = config_.flow;
  flow.chunk_bytes = std::min(flow.chunk_bytes, peer_.chunk_bytes);
  auto opened =
      Outgoing::open(std::move(comm), flow, [this](const Message& message) { send_message(message); });
  if (!opened) return tl::unexpected(opened.error());
  outgoing_.emplace(std::move(*opened));
  return {};
}

Status NetChannel::open_incoming(RecvComm comm) {
  auto opened =
      Incoming::open(std::move(comm), config_.flow, config_.unpacker,
                     {.resolve = [this](const Chunk& chunk) { return resolve(chunk); },
                      .landed = [this](const Chunk& chunk, const Status& status) { landed(chunk, status); }});
  if (!opened) return tl::unexpected(opened.error());
  incoming_.emplace(std::move(*opened));
  return {};
}

/// True if a step was made.
Result<bool> NetChannel::advance_connect() {
  if (Clock::now() >= deadline_) {
    return fail(ErrorCode::kTimedOut, "connect {}: not ready after {} ms", describe(),
                config_.connect_timeout.count());
  }
  if (!connector_) return false;
  bool moved = false;
  if (!outgoing_) {
    auto comm = connector_->poll();
    if (!comm) return tl::unexpected(comm.error());
    if (*comm) {
      if (auto opened = open_outgoing(std::move(**comm)); !opened) return tl::unexpected(opened.error());
      moved = true;
    }
  }
  if (!incoming_) {
    auto comm = listener_.poll();
    if (!comm) return tl::unexpected(comm.error());
    if (*comm) {
      if (auto opened = open_incoming(std::move(**comm)); !opened) return tl::unexpected(opened.error());
      moved = true;
    }
  }
  if (outgoing_ && !proved_) {
    const auto sent = outgoing_->send_proof(proof(setup_.role, peer_.handle));
    if (!sent) return tl::unexpected(sent.error());
    proved_ = *sent;
  }
  if (outgoing_) {
    if (auto sent = outgoing_->progress(); !sent) return sent;
  }
  if (incoming_ && !peer_proved_) {
    const auto theirs = incoming_->poll_proof();
    if (!theirs) return tl::unexpected(theirs.error());
    if (*theirs) {
      const Role sender = setup_.role == Role::kConnector ? Role::kAcceptor : Role::kConnector;
      if (!crypto::equal(**theirs, proof(sender, listener_.handle()))) {
        return fail(ErrorCode::kPermissionDenied,
                    "connect {}: the other side does not know the session's secret", describe());
      }
      peer_proved_ = moved = true;
    }
  }
  if (!proved_ || !peer_proved_ || !outgoing_->idle()) return moved;
  state_ = ChannelState::kReady;
  heard_at_ = moved_at_ = next_tick_ = Clock::now();
  for (Message& message : early_) {
    if (auto taken = take(std::move(message)); !taken) return tl::unexpected(taken.error());
  }
  early_.clear();
  return true;
}

bool NetChannel::post(const Batch& batch) {
  rest_until_ = {};
  const bool enough = bytes_under_way_ != 0 && bytes_under_way_ + batch.bytes > config_.most_bytes;
  if (enough || writes_.size() + reads_.size() >= kMaxBatches) return false;
  moved_at_ = Clock::now();
  if (batch.bytes == 0) {
    completions_.push_back({batch.id, {}});
    return true;
  }
  std::vector<Piece> pieces;
  std::vector<Range> ranges;
  batch.for_each_piece([&](const Segment& piece) {
    pieces.push_back({piece.local, piece.size, piece.registration});
    ranges.push_back({piece.key->info().id, piece.key->info().key, piece.remote, piece.size});
  });
  const std::uint64_t id = ++last_batch_;
  bytes_under_way_ += batch.bytes;
  if (batch.operation == Operation::kRead) {
    Read& read = reads_[id];
    read.id = batch.id;
    read.pieces = std::move(pieces);
    read.bytes = batch.bytes;
    send_message(ReadRequest{id, std::move(ranges)});  // goes with those of other reads that are posted now
    return true;
  }
  auto out = std::make_shared<OutgoingBatch>();
  out->id = id;
  out->pieces = std::move(pieces);
  out->targets = std::move(ranges);
  out->left = batch.bytes;
  writes_[id] = {.id = batch.id, .bytes = batch.bytes, .out = out, .done = std::nullopt};
  outgoing_->add(std::move(out));
  return true;
}

void NetChannel::abandon(BatchId id) {
  for (auto& [number, write] : writes_) {
    if (write.id != id || write.out->closed) continue;
    outgoing_->close(*write.out);
    write.cancel_due = true;
  }
  for (auto& [number, read] : reads_) {
    if (read.id != id || read.abandoned) continue;
    read.abandoned = true;
    send_message(Cancel{number, true});
  }
  flush();
}

bool NetChannel::progress(std::vector<Completion>& completions) {
  bool moved = false;
  const NoSigpipe quiet;
  const OnDevice on_device(config_.flow);
  if (state_ != ChannelState::kFailed) {
    const auto stepped = state_ == ChannelState::kConnecting ? advance_connect() : move();
    if (!stepped) {
      lose(stepped.error(), true);
    } else {
      moved = *stepped;
    }
  }
  flush();
  moved = moved || !completions_.empty();
  std::ranges::move(completions_, std::back_inserter(completions));
  completions_.clear();
  return moved;
}

Result<bool> NetChannel::move() {
  const auto now = Clock::now();
  if (now < rest_until_) {
    // Threads that poll, of both sides, can be as many as there are cores: the session's threads, which bring
    // the announcements, are not to wait for a time slice to end.
    std::this_thread::yield();
    return true;
  }
  const auto sent = outgoing_->progress();
  if (!sent) return sent;
  const auto received = incoming_->progress();
  if (!received) return received;
  const bool ended = end_batches();
  const bool moved = *sent || *received || ended;
  if (moved) moved_at_ = now;
  if (now >= next_tick_) {
    if (auto ticked = tick(now); !ticked) return tl::unexpected(ticked.error());
  }
  if (moved || !busy() || now - moved_at_ >= kMaybeMoving) return moved;
  rest_until_ = now + kRest;
  return true;
}

/// A few times in each keepalive time, also when nothing is under way.
Status NetChannel::tick(Clock::time_point now) {
  using namespace std::chrono;
  // Whoever did not look for so long cannot tell what there was to be heard.
  if (now - next_tick_ > config_.keepalive / 2) heard_at_ = std::max(heard_at_, now - config_.keepalive / 2);
  if (now - heard_at_ > config_.keepalive) {
    return fail(ErrorCode::kPeerGone, "{}: the other side has not been heard of for {} ms", describe(),
                duration_cast<milliseconds>(now - heard_at_).count());
  }
  // A chunk is small: if none moves for so long, the plugin has lost its connection without saying so.
  const milliseconds patience = std::max<milliseconds>(10 * config_.keepalive, seconds(10));
  if (busy() && now - moved_at_ > patience) {
    return fail(ErrorCode::kPeerGone, "{}: nothing has moved for {} ms though the other side lives",
                describe(), duration_cast<milliseconds>(now - moved_at_).count());
  }
  send_message(Ping{});
  outgoing_->sweep();
  incoming_->sweep();
  next_tick_ = now + config_.keepalive / 4;
  polls_.set_alarm(next_tick_);
  return {};
}

void NetChannel::end_writes() {
  for (auto& [number, write] : writes_) {
    const OutgoingBatch& out = *write.out;
    if (out.failed && !write.done) write.cancel_due = true;
    if (!write.cancel_due || std::exchange(write.cancelled, true)) continue;
    if (out.posted_any) {
      send_message(Cancel{number, false});
    } else {
      write.done =
          tl::unexpected(out.failed.value_or(Error{ErrorCode::kCancelled, "the transfer was cancelled"}));
    }
  }
  std::erase_if(writes_, [&](const auto& entry) {
    const Write& write = entry.second;
    if (!write.done || !write.out->quiet()) return false;
    // What made it end early says more than the peer's word that it was cancelled.
    const auto& failed = write.out->failed;
    completions_.push_back({write.id, failed ? Status(tl::unexpected(*failed)) : *write.done});
    bytes_under_way_ -= write.bytes;
    return true;
  });
}

/// Completes what has ended on both sides.
bool NetChannel::end_batches() {
  const std::size_t before = completions_.size();
  end_writes();
  std::erase_if(reads_, [&](const auto& entry) {
    const Read& read = entry.second;
    if (read.outstanding != 0 || (!read.ended && read.announced != read.bytes)) return false;
    Status status;
    if (read.ended) status = tl::unexpected(*read.ended);
    if (read.failed) status = tl::unexpected(*read.failed);
    if (read.abandoned && status) status = fail(ErrorCode::kCancelled, "the transfer was cancelled");
    completions_.push_back({read.id, std::move(status)});
    bytes_under_way_ -= read.bytes;
    return true;
  });
  std::erase_if(peer_reads_, [&](const auto& entry) {
    const PeerRead& read = entry.second;
    if (!read.out->quiet()) return false;
    if (read.out->failed) {
      send_message(Done{entry.first, true, tl::unexpected(*read.out->failed)});
    } else if (read.out->left != 0) {
      send_message(Done{entry.first, true, fail(ErrorCode::kCancelled, "the transfer was cancelled")});
    }
    return true;
  });
  return completions_.size() != before;
}

/// Closes the comms, so that no memory is touched, and then completes everything.
void NetChannel::lose(Error why, bool tell_peer) {
  if (state_ == ChannelState::kFailed) return;
  const OnDevice on_device(config_.flow);
  state_ = ChannelState::kFailed;
  outgoing_.reset();
  incoming_.reset();
  connector_.reset();
  polls_.clear_alarm();
  if (tell_peer) send_message(Bye{why.message});
  flush();
  for (const auto& [number, write] : writes_) {
    completions_.push_back({write.id, fail(ErrorCode::kPeerGone, "{}", why.message)});
  }
  for (const auto& [number, read] : reads_) {
    completions_.push_back({read.id, fail(ErrorCode::kPeerGone, "{}", why.message)});
  }
  writes_.clear();
  reads_.clear();
  peer_writes_.clear();
  peer_reads_.clear();
  error_ = std::move(why);
}

}  // namespace p2p::nccl_net
