// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/listen/first_bytes.h"

#include <algorithm>

#include "wire/messages.h"

namespace p2p::engine {
namespace {

// A control connection begins with the length of its first frame, then that frame's type.
constexpr std::size_t kLengthBytes = sizeof(std::uint32_t);
constexpr std::size_t kControlBytes = kLengthBytes + sizeof(std::uint16_t);
constexpr std::size_t kHello = 1;  // the type of wire::Hello
const std::size_t kResume = wire::Message(wire::Resume{}).index() + 1;

// Read as the length of a frame, a stream's magic number is more than a stranger may send: the two cannot be
// confused.
static_assert(StreamPort::kMagic > wire::kStrangerFrameBytes);

}  // namespace

FirstBytes FirstBytes::read(ByteView bytes) {
  if (bytes.size() < kControlBytes) return {.kind = Kind::kUndecided, .needed = kControlBytes};
  ByteReader in(bytes);
  const auto length = in.get<std::uint32_t>();
  if (length == StreamPort::kMagic) {
    constexpr std::size_t kPrefix = StreamPort::kPrefixBytes;
    if (bytes.size() < kPrefix) return {.kind = Kind::kUndecided, .needed = kPrefix};
    in.take(sizeof(std::uint16_t));
    FirstBytes stream{.kind = Kind::kStream};
    std::ranges::copy(in.take(sizeof stream.token), stream.token.begin());
    return stream;
  }
  const auto type = in.get<std::uint16_t>();
  if (length > wire::kStrangerFrameBytes) return {.kind = Kind::kForeign};
  if (type == kHello) return {.kind = Kind::kControl};
  if (type != kResume || length != wire::Resume::kFrameBytes - kLengthBytes) return {.kind = Kind::kForeign};
  if (bytes.size() < kMost) return {.kind = Kind::kUndecided, .needed = kMost};
  FirstBytes resume{.kind = Kind::kResume};
  std::ranges::copy(in.take(sizeof resume.token), resume.token.begin());
  return resume;
}

}  // namespace p2p::engine
