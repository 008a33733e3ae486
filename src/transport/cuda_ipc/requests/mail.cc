// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/requests/mail.h"

#include <cstring>
#include <utility>

#include "base/error.h"
#include "transport/cuda_ipc/requests/channel_messages.h"

namespace p2p::cuda_ipc {

void Mail::ask_by(std::shared_ptr<const void> kept, Ring& there, Ring& back) {
  asked_ = Way{std::move(kept), RingWriter(there), RingReader(back)};
}

bool Mail::serve_by(std::shared_ptr<const void> kept, Ring& from, Ring& back) {
  if (served_) return false;
  served_ = Way{std::move(kept), RingWriter(back), RingReader(from)};
  return true;
}

// A block of words says how many messages went by the link before it.
void Mail::ask(ByteView message) {
  if (asked_) {
    Bytes block(sizeof sent_ + message.size());
    std::memcpy(block.data(), &sent_, sizeof sent_);
    std::memcpy(block.data() + sizeof sent_, message.data(), message.size());
    if (write(*asked_, block)) return;
  }
  link_->send(message);
  ++sent_;
}

void Mail::answer(ByteView message) {
  if (!served_ || !write(*served_, message)) link_->send(message);
}

// The link wakes who rests.
bool Mail::write(Way& way, ByteView block) {
  if (block.size() > kMaxMessageBlockBytes) return false;
  const auto written = way.writer.write(block);
  if (!written) error_ = written.error();
  if (!written || !*written) return false;
  if (way.writer.wake_due()) link_->send(encode(Look{}));
  return true;
}

Result<bool> Mail::next(Bytes& message) {
  if (error_) return tl::unexpected(*error_);
  auto read = read_asked(message);
  if (read && !*read && asked_) read = asked_->reader.read(message);
  if (!read) error_ = read.error();
  return read;
}

Result<bool> Mail::read_asked(Bytes& message) {
  if (!served_) return false;
  if (!held_) {
    const auto read = served_->reader.read(block_);
    if (!read || !*read) return read;
    held_ = true;
  }
  ByteReader in(block_);
  const auto before = in.get<std::uint64_t>();
  if (!in.ok()) return fail(ErrorCode::kProtocol, "words of a cuda_ipc peer without a number");
  if (before > came_) return false;
  const ByteView words = in.take(in.left());
  message.assign(words.begin(), words.end());
  held_ = false;
  return true;
}

}  // namespace p2p::cuda_ipc
