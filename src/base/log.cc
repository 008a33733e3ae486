// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "p2p/write_log.h"

namespace p2p {
namespace {

using Sink = std::function<void(LogLevel, std::string_view)>;

class Logger {
 public:
  static Logger& instance() {
    static Logger logger;
    return logger;
  }

  bool enabled(LogLevel level) const { return level >= level_.load(std::memory_order_relaxed); }
  void set_level(LogLevel level) { level_.store(level, std::memory_order_relaxed); }

  void set_sink(Sink sink) {
    MutexLock lock(mutex_);
    sink_ = sink ? std::make_shared<const Sink>(std::move(sink)) : nullptr;
  }

  void write(LogLevel level, std::string_view line) {
    std::shared_ptr<const Sink> sink;
    {
      MutexLock lock(mutex_);
      sink = sink_;
    }
    if (sink) return (*sink)(level, line);
    stderr_.log(static_cast<spdlog::level::level_enum>(level), "{}", line);
  }

 private:
  Logger() : stderr_("uccl_p2p", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    stderr_.set_level(spdlog::level::trace);
  }

  spdlog::logger stderr_;
  std::atomic<LogLevel> level_{LogLevel::kWarning};
  Mutex mutex_;
  std::shared_ptr<const Sink> sink_ P2P_GUARDED_BY(mutex_);
};

}  // namespace

bool log_enabled(LogLevel level) { return Logger::instance().enabled(level); }
void log_line(LogLevel level, std::string_view line) { Logger::instance().write(level, line); }
void write_log(LogLevel level, std::string_view line) {
  if (log_enabled(level)) log_line(level, line);
}
void set_log_level(LogLevel level) { Logger::instance().set_level(level); }
void set_log_sink(std::function<void(LogLevel, std::string_view)> sink) {
  Logger::instance().set_sink(std::move(sink));
}

}  // namespace p2p
