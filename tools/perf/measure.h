// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "buffer.h"
#include "exchange.h"
#include "p2p/endpoint.h"
#include "p2p/result.h"
#include "row.h"

namespace p2p::perf {

/// Measures one row from the client's side: sets both sides' memory up, moves data for the row's duration,
/// checks the destination, then once more with another pattern. An error is a row that could not be
/// measured; wrong bytes are figures with `verified` false and a `fault`.
/// `spare` is memory of the same place for the copies of Row::awake.
Result<Figures> measure(Endpoint& endpoint, const std::string& memory, const Buffer& spare,
                        Exchange& exchange, const Row& row);

}  // namespace p2p::perf
