// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/messaging/frame_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/guarded_copy.h"
#include "base/safe_copy.h"
#include "wire/encode.h"
#include "wire/fields.h"

namespace p2p::engine {
namespace {

constexpr std::size_t kLeastCapacity = std::size_t{16} << 10;

// What is kept when nothing is in use.
constexpr std::size_t kIdleCapacity = std::size_t{1} << 20;

// Of the frame, of this side's own making, that begins here.
std::size_t frame_bytes(const std::byte* frame) {
  std::uint32_t length = 0;
  std::memcpy(&length, frame, sizeof length);
  return wire::kLengthBytes + length;
}

}  // namespace

Status FrameLog::append(const wire::Message& message, std::span<const ByteView> tail) {
  wire::encode(message, frame_);
  std::size_t bytes = 0;
  for (const ByteView& item : tail) bytes += item.size();
  if (bytes != 0) wire::lengthen(frame_, static_cast<std::uint32_t>(bytes));
  std::byte* to = make_room(frame_.size() + bytes);
  std::memcpy(to, frame_.data(), frame_.size());
  to += frame_.size();
  for (const ByteView& item : tail) {
    if (!guarded_copy(to, item.data(), item.size())) {
      return tl::unexpected(bad_memory("send", item.data(), item.size()));
    }
    to += item.size();
  }
  size_ += frame_.size() + bytes;
  return {};
}

// Behind what is kept.
std::byte* FrameLog::make_room(std::size_t bytes) {
  if (first_ + size_ + bytes > capacity_) {
    const std::size_t needed = size_ + bytes;
    if (needed > capacity_ / 2) {
      capacity_ = std::max(kLeastCapacity, 2 * needed);
      // NOLINTNEXTLINE(modernize-avoid-c-arrays)
      auto larger = std::make_unique_for_overwrite<std::byte[]>(capacity_);
      if (size_ != 0) std::memcpy(larger.get(), data_.get() + first_, size_);
      data_ = std::move(larger);
    } else {
      std::memmove(data_.get(), data_.get() + first_, size_);
    }
    first_ = 0;
  }
  return data_.get() + first_ + size_;
}

ByteView FrameLog::from(std::uint64_t offset, std::size_t most) const {
  const ByteView all = ByteView(data_.get() + first_, size_).subspan(offset - begin_);
  std::size_t taken = 0;
  while (taken != all.size()) {
    const std::size_t next = taken + frame_bytes(all.data() + taken);
    if (next > most && taken != 0) break;
    taken = next;
  }
  return all.first(taken);
}

bool FrameLog::drop(std::uint64_t offset) {
  if (offset < begin_ || offset > end()) return false;
  const std::size_t bytes = offset - begin_;
  std::size_t whole = 0;
  while (whole < bytes) whole += frame_bytes(data_.get() + first_ + whole);
  if (whole != bytes) return false;
  begin_ = offset;
  first_ += bytes;
  size_ -= bytes;
  if (size_ != 0) return true;
  first_ = 0;
  if (capacity_ > kIdleCapacity) {
    data_.reset();
    capacity_ = 0;
  }
  return true;
}

}  // namespace p2p::engine
