// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/observe/transfer_trace.h"

#include <utility>

#include "base/underlying.h"
#include "engine/observe/trace.h"

namespace p2p::engine {
namespace {

using Clock = std::chrono::steady_clock;

std::string_view outcome(const Status& status) { return status ? "ok" : to_string(status.error().code); }

/// Unique among the items that are under way in this process.
std::uint64_t id_of(const TransferTrace::Way& way, BatchId item) {
  return (reinterpret_cast<std::uintptr_t>(way.runner) << 10) + to_underlying(item);
}

template <std::size_t kSize>
void keep(std::string_view text, char (&place)[kSize]) {
  text.copy(place, kSize);
}

}  // namespace

TransferTrace::TransferTrace(std::shared_ptr<Trace> trace, const Subject& subject)
    : trace_(std::move(trace)), number_(trace_->next()), operation_(subject.operation) {
  trace_->note(
      {.kind = Trace::Kind::kSubmitted, .subject = subject, .at = Clock::now(), .transfer = number_});
}

void TransferTrace::item_sent(const Way& way, const Batch& item, TimePoint at) {
  if (!started_.exchange(true)) {
    trace_->note(
        {.kind = Trace::Kind::kStarted, .subject = {.operation = operation_}, .at = at, .transfer = number_});
  }
  Trace::Event event{.kind = Trace::Kind::kItemSent,
                     .subject = {.operation = operation_, .bytes = item.bytes},
                     .at = at,
                     .transfer = number_,
                     .item = id_of(way, item.id)};
  keep(way.transport, event.transport);
  keep(way.rail, event.rail);
  trace_->note(event);
}

void TransferTrace::item_ended(const Way& way, BatchId item, const Status& status) {
  trace_->note({.kind = Trace::Kind::kItemEnded,
                .subject = {.operation = operation_},
                .at = Clock::now(),
                .transfer = number_,
                .item = id_of(way, item),
                .outcome = outcome(status)});
}

void TransferTrace::ended(const Status& status) {
  trace_->note({.kind = Trace::Kind::kEnded,
                .subject = {.operation = operation_},
                .at = Clock::now(),
                .transfer = number_,
                .outcome = outcome(status)});
}

}  // namespace p2p::engine
