// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream/sender.h"

#include <sys/socket.h>

#include <algorithm>

#include "base/error.h"
#include "base/io_vector.h"
#include "base/safe_copy.h"
#include "base/wire_code.h"

namespace p2p::tcp {
namespace {

// A send of less than this takes further frames along: calls with 64 KiB are the slowest of all sizes.
constexpr std::size_t kSendBytes = std::size_t{256} << 10;
constexpr std::size_t kFlushBytes = std::size_t{2} << 20;
constexpr std::size_t kSpareFrames = 64;
// Blocks of words that wait for the socket: the rest wait where they are kept anyhow.
constexpr std::size_t kWordFrames = 4;
// Of a stream's sends: memory that is bad and then good again cannot be told from a fault of the system.
constexpr unsigned kMostFaults = 16;

}  // namespace

Sender::~Sender() = default;

void Sender::start(socket::Stream& stream, std::size_t zerocopy_bytes) {
  stream_ = &stream;
  zerocopy_.enable(stream.fd(), stream.encrypted() ? 0 : zerocopy_bytes);
}

OutFrame& Sender::make_frame(Urgency urgency, const FrameHeader& header) {
  FramePtr frame;
  if (spare_.empty()) {
    frame = std::make_unique<OutFrame>();
  } else {
    frame = std::move(spare_.back());
    spare_.pop_back();
  }
  frame->header = header;
  frame->head.resize(FrameHeader::kBytes);
  queues_[urgency].push_back(std::move(frame));
  return *queues_[urgency].back();
}

void Sender::post_write(const Batch& batch, std::byte* staged) {
  OutFrame& frame = make_frame(
      kBulk, {.type = FrameType::kWrite, .payload_bytes = static_cast<std::uint32_t>(batch.bytes)});
  collect_ranges(batch, ranges_);
  encode_ranges(ranges_, frame.head);
  frame.header.descriptor_bytes = static_cast<std::uint32_t>(frame.head.size() - FrameHeader::kBytes);
  if (staged != nullptr) {
    frame.body.push_back({staged, batch.bytes});
  } else {
    batch.for_each_piece([&frame](const Segment& piece) { append_run(frame.body, piece.local, piece.size); });
  }
  frame.batch = batch.id;
  frame.of_batch = true;
  writes_.queue(batch.bytes);
}

void Sender::post_read_request(std::uint64_t number, const Batch& batch) {
  OutFrame& frame = make_frame(
      kRequests,
      {.type = FrameType::kReadRequest, .length = static_cast<std::uint32_t>(batch.bytes), .number = number});
  collect_ranges(batch, ranges_);
  encode_ranges(ranges_, frame.head);
  frame.header.descriptor_bytes = static_cast<std::uint32_t>(frame.head.size() - FrameHeader::kBytes);
}

bool Sender::withdraw_read_request(std::uint64_t number) {
  auto& queue = queues_[kRequests];
  const auto found = std::find_if(queue.begin(), queue.end(), [number](const FramePtr& frame) {
    return frame->header.type == FrameType::kReadRequest && frame->header.number == number;
  });
  if (found == queue.end()) return false;
  queue.erase(found);
  return true;
}

void Sender::respond(std::uint64_t number, std::vector<iovec>& pieces,
                     std::vector<std::shared_ptr<Registration>>& guards) {
  OutFrame& frame = make_frame(kBulk, {.type = FrameType::kReadResponse,
                                       .payload_bytes = static_cast<std::uint32_t>(total_bytes(pieces)),
                                       .number = number});
  frame.body.swap(pieces);
  frame.guards.swap(guards);
  append_outcome(frame.end, {.type = FrameType::kReadEnd, .number = number}, {});
  ++peer_reads_;
}

void Sender::respond(std::uint64_t number, std::span<std::byte> bytes, std::shared_ptr<void> keep) {
  std::vector<iovec> body{{bytes.data(), bytes.size()}};
  std::vector<std::shared_ptr<Registration>> none;
  respond(number, body, none);
  queues_[kBulk].back()->keep = std::move(keep);
}

void Sender::end_read(std::uint64_t number, const Status& outcome) {
  FrameHeader header{.type = FrameType::kReadEnd, .number = number};
  OutFrame& frame = make_frame(kRequests, header);
  if (!outcome) {
    frame.head.clear();
    header.code = wire_code(outcome.error().code);
    append_outcome(frame.head, header, outcome.error().message);
    header.descriptor_bytes = static_cast<std::uint32_t>(frame.head.size() - FrameHeader::kBytes);
    frame.header = header;
  }
  ++peer_reads_;
}

bool Sender::post_messages(ByteView block) {
  if (word_frames_ == kWordFrames) return false;
  OutFrame& frame = make_frame(kRequests, {.type = FrameType::kMessages,
                                           .descriptor_bytes = static_cast<std::uint32_t>(block.size())});
  frame.head.insert(frame.head.end(), block.begin(), block.end());
  ++word_frames_;
  return true;
}

Status Sender::write_done(const Status& outcome) {
  ++done_;
  if (outcome) return {};
  if (queues_[kRefusals].size() >= kMaxWrites) {
    return p2p::fail(ErrorCode::kProtocol, "the peer has more than {} writes under way", kMaxWrites);
  }
  FrameHeader header{.type = FrameType::kRefusal, .code = wire_code(outcome.error().code), .number = done_};
  OutFrame& frame = make_frame(kRefusals, header);
  frame.head.clear();
  append_outcome(frame.head, header, outcome.error().message);
  frame.header.descriptor_bytes = static_cast<std::uint32_t>(frame.head.size() - FrameHeader::kBytes);
  return {};
}

bool Sender::start_next() {
  const auto waiting =
      std::find_if(queues_.begin(), queues_.end(), [](const auto& queue) { return !queue.empty(); });
  if (waiting == queues_.end()) {
    if (!acknowledgement_wanted_ || announced_ == done_) return false;
    make_frame(kRequests, {.type = FrameType::kAck});
    return start_next();
  }
  started_.push_back(std::move(waiting->front()));
  waiting->pop_front();
  OutFrame& frame = *started_.back();
  FrameHeader& header = frame.header;
  if (header.type == FrameType::kWrite) {
    header.number = writes_.start(frame.batch, header.payload_bytes);
  }
  // Refusals go first, so none that this covers is still to come, but those behind this very frame.
  header.acknowledged = queues_[kRefusals].empty() ? done_ : queues_[kRefusals].front()->header.number - 1;
  announced_ = header.acknowledged;
  if (announced_ == done_) acknowledgement_wanted_ = false;
  frame.seal();
  if (!frame.end.empty()) {
    FrameHeader end{.type = FrameType::kReadEnd, .number = header.number};
    end.acknowledged = header.acknowledged;
    end.write_to(frame.end.data());
  }
  return true;
}

// Memory that a peer asked for may be read during this send; of a region that is gone the rest goes as zeros.
void Sender::guard(OutFrame& frame) {
  const Status begun = begin_accesses(frame.guards, accesses_);
  if (!begun) frame.blank(begun.error());
}

// The pieces of one send: of the frame at the front and, as long as they are small, of those behind it.
std::size_t Sender::gather(int& flags) {
  if (started_.empty() && !start_next()) return 0;
  OutFrame& front = *started_.front();
  if (front.of_batch && zerocopy_.worthwhile(front.body_left())) {
    // The header lives shorter than the kernel would hold it: it goes by copy.
    if (front.head_sent != front.head.size()) {
      flags = MSG_MORE;
      pieces_[0] = {front.head.data() + front.head_sent, front.head.size() - front.head_sent};
      return 1;
    }
    flags = MSG_ZEROCOPY;
    return front.gather(pieces_);
  }
  std::size_t used = 0;
  std::size_t bytes = 0;
  for (std::size_t i = 0; used != pieces_.size() && bytes < kSendBytes; ++i) {
    if (i == started_.size() && !start_next()) break;
    OutFrame& frame = *started_[i];
    const std::size_t body = frame.body_left();
    if (frame.of_batch && zerocopy_.worthwhile(body)) break;
    if (body != 0) guard(frame);
    used += frame.gather(std::span(pieces_).subspan(used));
    bytes += body + FrameHeader::kBytes;
  }
  return used;
}

// The system says that some memory is bad, and not which. False: none of it is, any more.
bool Sender::blank_bad_memory() {
  bool found = false;
  for (const FramePtr& each : started_) {
    OutFrame& frame = *each;
    const std::span<const iovec> left = std::span<const iovec>(frame.body).subspan(frame.next_piece);
    if (left.empty() || readable(left)) continue;
    found = true;
    const Error why = bad_memory("read", left);
    if (frame.header.type == FrameType::kWrite) {
      writes_.spoiled(frame.header.number, why);
      frame.blank();
    } else {
      frame.blank(why);
    }
  }
  return found;
}

void Sender::advance(std::size_t bytes) {
  while (!started_.empty()) {
    OutFrame& frame = *started_.front();
    const std::size_t before = frame.header.type == FrameType::kWrite ? frame.body_left() : 0;
    bytes -= frame.advance(bytes);
    if (before != 0) writes_.sent(before - frame.body_left());
    if (!frame.sent()) break;
    finish_front();
  }
}

void Sender::finish_front() {
  FramePtr frame = std::move(started_.front());
  started_.pop_front();
  if (frame->header.type == FrameType::kWrite) writes_.sent_whole(frame->header.number);
  if (frame->header.type == FrameType::kMessages) --word_frames_;
  if (frame->header.type == FrameType::kReadResponse || frame->header.type == FrameType::kReadEnd)
    --peer_reads_;
  if (spare_.size() == kSpareFrames) return;
  frame->clear();
  spare_.push_back(std::move(frame));
}

Result<bool> Sender::flush() {
  std::size_t total = 0;
  const std::size_t kept = stream_->kept();
  while (total < kFlushBytes) {
    int flags = 0;
    const std::size_t used = gather(flags);
    if (used == 0 && stream_->kept() == 0) break;
    const Result<socket::Moved> moved = stream_->try_send(std::span(pieces_).first(used), flags);
    const bool unexplained = moved && moved->faulted && !blank_bad_memory();
    accesses_.clear();
    if (!moved) return tl::unexpected(moved.error());
    if (unexplained && ++faults_ == kMostFaults) {
      return p2p::fail(ErrorCode::kSystem, "send on a TCP stream: memory is bad now and then");
    }
    if (moved->zerocopy) {
      writes_.hold(started_.front()->header.number, zerocopy_.count_send());
    }
    total += moved->bytes;
    advance(moved->bytes);
    if (moved->blocked) break;
  }
  if (zerocopy_.outstanding()) {
    if (Status status = zerocopy_.collect(stream_->fd()); !status) return tl::unexpected(status.error());
    writes_.release(zerocopy_.released());
  }
  const bool left = total != 0 || stream_->kept() < kept;
  if (left) liveness_.sent();
  return left;
}

bool Sender::pending() const {
  return !started_.empty() || stream_->kept() != 0 || (acknowledgement_wanted_ && announced_ != done_) ||
         std::any_of(queues_.begin(), queues_.end(), [](const auto& queue) { return !queue.empty(); });
}

Status Sender::acknowledged(std::uint64_t number) {
  Status status = writes_.acknowledged(number);
  writes_.release(zerocopy_.released());
  return status;
}

bool Sender::abandon(BatchId id) {
  const auto of_batch = [id](const FramePtr& frame) { return frame->of_batch && frame->batch == id; };
  auto& waiting = queues_[kBulk];
  if (const auto found = std::find_if(waiting.begin(), waiting.end(), of_batch); found != waiting.end()) {
    writes_.withdraw(id, (*found)->header.payload_bytes);
    waiting.erase(found);
    return true;
  }
  if (const auto found = std::find_if(started_.begin(), started_.end(), of_batch); found != started_.end()) {
    const Status good = (*found)->detach();
    if (!good) writes_.spoiled((*found)->header.number, good.error());
    return true;
  }
  return writes_.has(id);
}

void Sender::fail(const Error& why) {
  writes_.fail(why);
  for (const FramePtr& frame : queues_[kBulk]) {
    if (frame->of_batch) completions_.push_back({frame->batch, tl::unexpected(why)});
  }
  started_.clear();
  for (auto& queue : queues_) queue.clear();
  spare_.clear();
}

}  // namespace p2p::tcp
