// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "engine/memory/region.h"
#include "p2p/memory.h"
#include "p2p/result.h"

namespace p2p::device {
class StagingPool;
}

namespace p2p::engine {

/// See Endpoint::gather and Endpoint::scatter. Memory of GPUs goes through slots of `staging`. Any thread.
Status gather(const RegionTable& regions, const std::shared_ptr<device::StagingPool>& staging,
              std::span<const LocalSpan> from, std::span<std::byte> into);
Status scatter(const RegionTable& regions, const std::shared_ptr<device::StagingPool>& staging,
               std::span<const std::byte> from, std::span<const LocalSpan> into);

}  // namespace p2p::engine
