// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "wire/decode.h"
#include "wire/encode.h"

using p2p::Bytes;
using p2p::ByteView;

namespace {

/// What was understood must be what encode makes of it.
void check(const p2p::wire::Message& message) {
  const Bytes frame = p2p::wire::encode(message);
  const auto again = p2p::wire::decode(ByteView(frame).subspan(4));
  if (!again || !(*again == message)) std::abort();
}

}  // namespace

/// The first byte chooses the size of the pieces in which the rest reaches the reader.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t step = data[0] == 0 ? size : data[0];
  const ByteView stream(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  p2p::wire::FrameReader reader;
  for (std::size_t at = 0; at < stream.size(); at += step) {
    reader.feed(stream.subspan(at, std::min(step, stream.size() - at)));
    for (;;) {
      const auto message = reader.next();
      if (!message) return 0;
      if (!*message) break;
      check(**message);
    }
    if (reader.buffered() > p2p::wire::kMaxFrameBytes) std::abort();
  }
  return 0;
}
