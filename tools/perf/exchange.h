// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "p2p/connection.h"
#include "p2p/result.h"
#include "row.h"

namespace p2p::perf {

/// What the client asks of the server, in this order for each row: kRow, then kArm, transfers and kCheck once
/// or more, then kEnd; kBye after the last row. The server answers each with a Reply.
enum class Request { kRow, kArm, kCheck, kEnd, kBye };

struct Ask {
  Request request = Request::kBye;
  Row row;                       ///< kRow
  std::uint64_t seed = 0;        ///< kArm, kCheck: of the pattern
  std::uint64_t used_slots = 0;  ///< kCheck
};

struct Reply {
  std::string error;                           ///< empty: done as asked
  std::optional<RegionDescriptor> descriptor;  ///< of the server's memory, to kRow
  std::optional<RegionDescriptor> spare;       ///< of memory of the same place that no row uses, to kRow; of
                                               ///< Row::beside bytes if there are to be any
};

/// Asks and replies as notifications over the engine's own connection. One thread.
class Exchange {
 public:
  explicit Exchange(Connection connection) : connection_(std::move(connection)) {}

  const Connection& connection() const { return connection_; }

  Status send(const Ask& ask);
  Status send(const Reply& reply);
  Result<Ask> receive_ask(std::chrono::milliseconds timeout);
  Result<Reply> receive_reply(std::chrono::milliseconds timeout);

  /// The next notification, whatever it says.
  Result<std::string> receive_text(std::chrono::milliseconds timeout);

  /// Sends, and fails also if the reply is an error.
  Result<Reply> call(const Ask& ask);

 private:
  Status send(const nlohmann::json& message);
  Result<nlohmann::json> receive(std::chrono::milliseconds timeout);

  Connection connection_;
  std::deque<std::string> come_;
};

/// Bound on whatever one side waits for while the other allocates, fills or checks memory.
inline constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(2);

}  // namespace p2p::perf
