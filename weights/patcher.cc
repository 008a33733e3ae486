// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "patcher.h"

#include <vector>

#include "delta.h"
#include "p2p/digest.h"

namespace p2p::weights {

Job<std::optional<std::uint64_t>> Patcher::start(std::uint32_t chunk, std::string_view delta,
                                                 std::uint64_t digest) {
  using Made = Result<std::optional<std::uint64_t>>;
  const std::uint64_t begin = demand_.begin(chunk), end = demand_.end(chunk);
  return jobs_.start(
      [&endpoint = endpoint_, base = base_, into = into_, begin, end, delta, digest](Room& room) -> Made {
        if (!base) return tl::unexpected(Error{ErrorCode::kNotFound, "the base is gone"});
        std::vector<std::byte>& bytes = room.base;
        const Status read = base->lent->gather(endpoint, base->pieces->within(begin, end), bytes);
        if (!read) return tl::unexpected(read.error());
        if (!apply_delta(delta, bytes)) return std::nullopt;
        const std::uint64_t made = p2p::digest(bytes);
        if (made != digest) return made;
        const Status written = into.lent->scatter(endpoint, bytes, into.pieces->within(begin, end));
        if (!written) return tl::unexpected(written.error());
        return made;
      });
}

}  // namespace p2p::weights
