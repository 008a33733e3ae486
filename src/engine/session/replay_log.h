// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "p2p/result.h"

namespace p2p::engine {

/// The frames of a session that its peer has not said to have handled, numbered from 0, in case they have to
/// go again. It holds so many bytes at most: beyond that nothing is kept until the peer has come so far. One
/// thread at a time.
class ReplayLog {
 public:
  /// How much may be kept from here on; 0: nothing.
  void keep(std::size_t most);

  void add(Bytes frame);

  /// The peer has handled so many of all. kProtocol if there were not so many.
  Status confirm(std::uint64_t handled);

  /// Those after the first `handled`; nothing if they are not all kept, or there were not so many.
  std::optional<std::vector<Bytes>> after(std::uint64_t handled) const;

 private:
  static std::size_t cost(const Bytes& frame) { return frame.size() + sizeof frame; }
  std::uint64_t next() const { return first_ + frames_.size(); }
  void fit();

  std::deque<Bytes> frames_;
  std::uint64_t first_ = 0;  // the number of the first that is kept
  std::size_t bytes_ = 0;
  std::size_t most_ = kMostAtFirst;

  // Until both sides have said that they can go on over another connection.
  static constexpr std::size_t kMostAtFirst = std::size_t{256} << 10;
};

}  // namespace p2p::engine
