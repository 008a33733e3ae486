// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "engine/listen/first_bytes.h"
#include "wire/decode.h"

namespace {

using p2p::engine::FirstBytes;
using Kind = FirstBytes::Kind;

void must(bool held) {
  if (!held) std::abort();
}

}  // namespace

/// What a port makes of the beginning of a connection: whatever piece of it has come, the judgement is that
/// of the whole or asks for more than has come; a stream's token is where it belongs; and who is turned away
/// could not have opened a session.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const p2p::ByteView bytes = std::as_bytes(std::span(data, size));
  const FirstBytes whole = FirstBytes::read(bytes);
  must(size < FirstBytes::kMost || whole.kind != Kind::kUndecided);
  for (std::size_t piece = 0; piece < std::min(size, FirstBytes::kMost); ++piece) {
    const FirstBytes part = FirstBytes::read(bytes.first(piece));
    if (part.kind == Kind::kUndecided) {
      must(part.needed > piece && part.needed <= FirstBytes::kMost);
    } else {
      must(part.kind == whole.kind && part.token == whole.token);
    }
  }
  if (whole.kind == Kind::kStream || whole.kind == Kind::kResume) {
    must(std::ranges::equal(whole.token, bytes.subspan(6, whole.token.size())));
  }
  if (whole.kind == Kind::kForeign) {
    p2p::wire::FrameReader reader(1024);
    reader.feed(bytes);
    const auto message = reader.next();
    must(!message || !*message || !std::holds_alternative<p2p::wire::Hello>(**message));
    must(!message || !*message || !std::holds_alternative<p2p::wire::Resume>(**message));
  }
  return 0;
}
