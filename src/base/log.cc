// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "p2p/write_log.h"

namespace p2p {
namespace {

using Sink = std::function<void(LogLevel, std::string_view)>;

/// True if standard error may take a line at once.
bool takes_now() {
  pollfd watched{STDERR_FILENO, POLLOUT, 0};
  return ::poll(&watched, 1, 0) == 1 && (watched.revents & POLLOUT) != 0;
}

/// Writes to standard error as much as it takes at once.
ssize_t write_now(std::string_view text) {
  struct stat file{};
  if (::fstat(STDERR_FILENO, &file) != 0) return -1;
  if (S_ISSOCK(file.st_mode)) {
    return ::send(STDERR_FILENO, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  if (!S_ISFIFO(file.st_mode) && !S_ISCHR(file.st_mode)) {
    return ::write(STDERR_FILENO, text.data(), text.size());
  }
  if (!takes_now()) return -1;
  // Other processes may write to the same pipe meanwhile. Its flags are theirs too, so it is opened anew;
  // where that is forbidden the look must do.
  const UniqueFd own = UniqueFd::of(::open, "/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  return ::write(own ? own.get() : STDERR_FILENO, text.data(), text.size());
}

/// Standard error. A thread never waits for whoever should read there: what is not taken at once is dropped
/// and counted, and the next line that is taken says so.
class StderrSink : public spdlog::sinks::base_sink<std::mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& line) override {
    spdlog::memory_buf_t text;
    if (dropped_ != 0) {
      const std::string note =
          fmt::format("{} lines were dropped, which standard error did not take", dropped_);
      formatter_->format({line.logger_name, spdlog::level::warn, note}, text);
    }
    formatter_->format(line, text);
    const ssize_t wrote = write_now({text.data(), text.size()});
    if (wrote == static_cast<ssize_t>(text.size())) {
      dropped_ = 0;
    } else {
      ++dropped_;
    }
  }
  void flush_() override {}

  std::uint64_t dropped_ = 0;
};

class Logger {
 public:
  static Logger& instance() {
    static auto* const logger = new Logger;  // engine threads may outlive static objects
    return *logger;
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
  Logger() : stderr_("uccl_p2p", std::make_shared<StderrSink>()) { stderr_.set_level(spdlog::level::trace); }

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
