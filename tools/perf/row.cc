// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "row.h"

#include "failure.h"

namespace p2p::perf {
namespace {

constexpr std::uint64_t kMaxTransferBytes = std::uint64_t{64} << 30;
constexpr std::uint64_t kMaxBlocks = std::uint64_t{1} << 24;
constexpr std::uint64_t kMaxDepth = 4096;
constexpr std::uint64_t kMaxNotifyBytes = std::uint64_t{1} << 20;
constexpr std::chrono::milliseconds kMaxDuration = std::chrono::hours(1);
constexpr std::chrono::milliseconds kMaxPause = std::chrono::seconds(10);

}  // namespace

std::string_view to_string(Operation operation) {
  switch (operation) {
    case Operation::kWrite: return "write";
    case Operation::kRead: return "read";
    case Operation::kSend: return "send";
    case Operation::kNotify: return "notify";
  }
  return "unknown";
}

Result<Operation> parse_operation(std::string_view text) {
  for (const Operation operation :
       {Operation::kWrite, Operation::kRead, Operation::kSend, Operation::kNotify}) {
    if (text == to_string(operation)) return operation;
  }
  return fail(ErrorCode::kInvalidArgument, "\"{}\" is not an operation: write, read, send or notify", text);
}

std::string_view to_string(Priority priority) {
  switch (priority) {
    case Priority::kHigh: return "high";
    case Priority::kNormal: return "normal";
    case Priority::kLow: return "low";
  }
  return "unknown";
}

Result<Priority> parse_priority(std::string_view text) {
  for (const Priority priority : {Priority::kHigh, Priority::kNormal, Priority::kLow}) {
    if (text == to_string(priority)) return priority;
  }
  return fail(ErrorCode::kInvalidArgument, "\"{}\" is not a priority: high, normal or low", text);
}

Status check(const Row& row) {
  if (row.size == 0 || row.size > kMaxTransferBytes || row.blocks == 0 || row.blocks > kMaxBlocks ||
      row.transfer_bytes() > kMaxTransferBytes) {
    return fail(ErrorCode::kInvalidArgument, "{} blocks of {} bytes are not between 1 byte and 64 GiB",
                row.blocks, row.size);
  }
  if (row.operation == Operation::kNotify && row.transfer_bytes() > kMaxNotifyBytes) {
    return fail(ErrorCode::kInvalidArgument, "notifications of {} bytes: at most {}", row.transfer_bytes(),
                kMaxNotifyBytes);
  }
  const bool one_sided = row.operation == Operation::kWrite || row.operation == Operation::kRead;
  if (!one_sided && (row.priority != Priority::kNormal || row.rate != 0 || row.beside != 0 || row.digest)) {
    return fail(ErrorCode::kInvalidArgument,
                "a priority, a rate, a digest or a load beside of a {}: of write and read",
                to_string(row.operation));
  }
  if (row.beside > kMaxTransferBytes) {
    return fail(ErrorCode::kInvalidArgument, "{} bytes beside: at most {}", row.beside, kMaxTransferBytes);
  }
  if (row.depth == 0 || row.depth > kMaxDepth) {
    return fail(ErrorCode::kInvalidArgument, "the depth {} is not between 1 and {}", row.depth, kMaxDepth);
  }
  if (row.duration.count() <= 0 || row.duration > kMaxDuration) {
    return fail(ErrorCode::kInvalidArgument, "the duration {} ms is not between 1 ms and one hour",
                row.duration.count());
  }
  if (row.pause.count() < 0 || row.pause > kMaxPause) {
    return fail(ErrorCode::kInvalidArgument, "the pause {} ms is not between 0 and {} ms", row.pause.count(),
                kMaxPause.count());
  }
  return {};
}

double Figures::gbytes_per_second(const Row& row) const {
  if (seconds <= 0) return 0;
  return static_cast<double>(transfers) * static_cast<double>(row.transfer_bytes()) / seconds / 1e9;
}

double Figures::messages_per_second() const {
  return seconds <= 0 ? 0 : static_cast<double>(transfers) / seconds;
}

}  // namespace p2p::perf
