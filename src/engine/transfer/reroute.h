// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "engine/request/segment_list.h"
#include "transport/batch.h"

namespace p2p::engine {

/// A list of what `batch`, which is a part of `list`, moves, for the transports that `route` names now.
/// Fails if there is none for a part of it.
Result<std::shared_ptr<const SegmentList>> build_reroute(
    const SegmentList& list, const Batch& batch,
    const std::function<Result<std::size_t>(const Region&, const RemoteRegion&)>& route);

}  // namespace p2p::engine
