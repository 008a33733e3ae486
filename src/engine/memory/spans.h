// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/underlying.h"
#include "engine/memory/region.h"

namespace p2p::engine {

inline std::uint64_t total(std::span<const LocalSpan> spans) {
  std::uint64_t bytes = 0;
  for (const LocalSpan& span : spans) bytes += span.size;
  return bytes;
}

/// Calls `visit(span, region)` for each span; at the first that lies in no region says which, and what for.
template <class Visitor>
Status visit_spans(std::string_view verb, const RegionTable& regions, std::span<const LocalSpan> spans,
                   Visitor&& visit) {
  std::shared_ptr<Region> region;
  for (const LocalSpan& span : spans) {
    if (!region || region->info().id != span.region) region = regions.find(span.region);
    if (!region) {
      return fail(ErrorCode::kNotFound, "{}: no local region {}", verb, to_underlying(span.region));
    }
    const RegionInfo& info = region->info();
    if (span.size != 0 && !info.contains(reinterpret_cast<std::uintptr_t>(span.data), span.size)) {
      return fail(ErrorCode::kOutOfRange, "{} {} bytes at {}: region {} is [{}, +{})", verb, span.size,
                  fmt::ptr(span.data), to_underlying(span.region), fmt::ptr(info.base), info.size);
    }
    visit(span, region);
  }
  return {};
}

}  // namespace p2p::engine
