// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream/out_frame.h"

#include <algorithm>
#include <array>

#include "base/io_vector.h"
#include "base/safe_copy.h"
#include "base/wire_code.h"

namespace p2p::tcp {
namespace {

const std::array<std::byte, std::size_t{64} << 10> kZeros{};

iovec rest_of(Bytes& bytes, std::size_t sent) { return {bytes.data() + sent, bytes.size() - sent}; }

}  // namespace

void OutFrame::clear() {
  header = {};
  head.clear();
  body.clear();
  end.clear();
  guards.clear();
  keep.reset();
  copy.clear();
  batch = {};
  of_batch = false;
  head_sent = next_piece = end_sent = 0;
}

std::size_t OutFrame::body_left() const { return total_bytes(std::span(body).subspan(next_piece)); }

void OutFrame::seal() { header.write_to(head.data()); }

std::size_t OutFrame::gather(std::span<iovec> room) {
  std::size_t used = 0;
  if (head_sent != head.size() && used != room.size()) room[used++] = rest_of(head, head_sent);
  const std::size_t pieces = std::min(room.size() - used, body.size() - next_piece);
  std::copy_n(body.begin() + static_cast<std::ptrdiff_t>(next_piece), pieces, room.begin() + used);
  used += pieces;
  const bool to_the_end = next_piece + pieces == body.size();
  if (to_the_end && end_sent != end.size() && used != room.size()) room[used++] = rest_of(end, end_sent);
  return used;
}

std::size_t OutFrame::advance(std::size_t bytes) {
  const std::size_t before = bytes;
  std::size_t part = std::min(bytes, head.size() - head_sent);
  head_sent += part;
  bytes -= part;
  part = std::min(bytes, body_left());
  next_piece += cut_front(std::span(body).subspan(next_piece), part);
  bytes -= part;
  part = std::min(bytes, end.size() - end_sent);
  end_sent += part;
  return before - (bytes - part);
}

Status OutFrame::detach() {
  copy.resize(body_left());
  const std::span<const iovec> left = std::span(body).subspan(next_piece);
  const bool whole = copy_in(copy.data(), left, copy.size()) == copy.size();
  const Status good = whole ? Status() : tl::unexpected(bad_memory("read", left));
  body.clear();
  next_piece = 0;
  if (!copy.empty()) body.push_back({copy.data(), copy.size()});
  of_batch = false;
  return good;
}

void OutFrame::blank() {
  guards.clear();
  std::size_t left = body_left();
  body.clear();
  next_piece = 0;
  while (left != 0) {
    const std::size_t part = std::min(left, kZeros.size());
    body.push_back({const_cast<std::byte*>(kZeros.data()), part});
    left -= part;
  }
  of_batch = false;
}

void OutFrame::blank(const Error& why) {
  blank();
  FrameHeader ending{.type = FrameType::kReadEnd, .code = wire_code(why.code), .number = header.number};
  ending.acknowledged = header.acknowledged;
  end.clear();
  append_outcome(end, ending, why.message);
}

void append_outcome(Bytes& out, FrameHeader header, std::string_view reason) {
  const ByteView text = as_bytes(reason.substr(0, kMaxReasonBytes));
  header.descriptor_bytes = static_cast<std::uint32_t>(text.size());
  const std::size_t start = out.size();
  out.resize(start + FrameHeader::kBytes);
  header.write_to(out.data() + start);
  out.insert(out.end(), text.begin(), text.end());
}

}  // namespace p2p::tcp
