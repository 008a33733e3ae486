// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/request/stripe.h"

#include <algorithm>

#include "base/error.h"

namespace p2p::engine {

Batch cut_batch(Batch& rest, const BatchLimits& limits) {
  Batch front{rest.id, rest.operation, {}, rest.skip, 0};
  std::size_t whole = 0;  // segments that are used to their ends
  bool more = false;      // and some of the next one
  while (!more && whole < rest.segments.size() && whole < limits.segments && front.bytes < limits.bytes) {
    const std::uint64_t left = rest.segments[whole].size - rest.skip;
    const std::uint64_t used = std::min(left, limits.bytes - front.bytes);
    front.bytes += used;
    more = used < left;
    rest.skip = more ? rest.skip + used : 0;
    if (!more) ++whole;
  }
  front.segments = rest.segments.first(whole + (more ? 1 : 0));
  rest.segments = rest.segments.subspan(whole);
  rest.bytes -= front.bytes;
  return front;
}

namespace {

template <class Span>
std::uint64_t total(std::span<const Span> spans) {
  std::uint64_t bytes = 0;
  for (const Span& span : spans) bytes += span.size;
  return bytes;
}

}  // namespace

Result<Pairing> pair_message(std::span<const LocalSpan> message, std::span<const RemoteSpan> receive) {
  Pairing pairing;
  const bool by_span = message.size() == receive.size();
  const std::uint64_t size = total(message);
  if (const std::uint64_t room = total(receive); size > room) {
    return fail(ErrorCode::kMessageTooLong, "send {} bytes: the receive takes at most {}", size, room);
  }
  std::size_t target = 0;
  std::uint64_t used = 0;
  for (std::size_t i = 0; i < message.size(); ++i) {
    LocalSpan left = message[i];
    if (by_span) {
      if (left.size > receive[i].size) {
        return fail(ErrorCode::kMessageTooLong,
                    "send span {} of {} bytes: the receive's span takes at most {}", i, left.size,
                    receive[i].size);
      }
      pairing.local.push_back(left);
      pairing.remote.push_back({receive[i].region, receive[i].address, left.size});
      continue;
    }
    while (left.size != 0) {
      const RemoteSpan& into = receive[target];
      const std::size_t step = std::min<std::size_t>(left.size, into.size - used);
      if (step != 0) {
        pairing.local.push_back({left.region, left.data, step});
        pairing.remote.push_back({into.region, into.address + used, step});
        left.data += step;
        left.size -= step;
        used += step;
      }
      if (used == into.size) {
        ++target;
        used = 0;
      }
    }
  }
  return pairing;
}

}  // namespace p2p::engine
