// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/log_route.h"

#include <array>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <functional>

#include "base/log.h"
#include "base/mutex.h"

namespace p2p::nccl_net {
namespace {

constexpr unsigned kLinesPerSecond = 5;

/// Counts lines by format string, roughly: strings whose hashes meet share a count.
class RateLimit {
 public:
  /// True if the line may pass; `suppressed` gets the number held back before it.
  bool pass(const char* format, unsigned& suppressed) {
    const auto second =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now().time_since_epoch());
    MutexLock lock(mutex_);
    Count& count = counts_[std::hash<const void*>()(format) / 8 % counts_.size()];
    if (count.second != second) {
      suppressed = count.lines > kLinesPerSecond ? count.lines - kLinesPerSecond : 0;
      count = {second, 0};
    }
    return ++count.lines <= kLinesPerSecond;
  }

 private:
  struct Count {
    std::chrono::seconds second{-1};
    unsigned lines = 0;
  };
  Mutex mutex_;
  std::array<Count, 256> counts_ P2P_GUARDED_BY(mutex_);
};

LogLevel level_of(int level) {
  switch (level) {
    case abi::kLogWarn: return LogLevel::kWarning;
    case abi::kLogAbort: return LogLevel::kError;
    case abi::kLogTrace: return LogLevel::kTrace;
    default: return LogLevel::kDebug;
  }
}

}  // namespace

void route_log(int level, unsigned long /*subsystems*/, const char* /*where*/, int /*line*/,
               const char* format, ...) {
  static RateLimit* const limit = new RateLimit;
  const LogLevel ours = level_of(level);
  unsigned suppressed = 0;
  if (!log_enabled(ours) || !limit->pass(format, suppressed)) return;
  std::array<char, 1024> text;
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  if (suppressed != 0) log(ours, "net plugin: {} lines like the next one were left out", suppressed);
  log(ours, "net plugin: {}", text.data());
}

}  // namespace p2p::nccl_net
