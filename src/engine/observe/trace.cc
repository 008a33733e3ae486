// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/observe/trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/futex.h"
#include "base/log.h"
#include "base/memory_guard.h"
#include "base/shared_by_name.h"
#include "base/underlying.h"

namespace p2p::engine {
namespace {

using Clock = std::chrono::steady_clock;

// Events in the queue at most.
constexpr std::size_t kMostQueued = 1U << 16;

// How long events gather before they are written together.
constexpr std::chrono::milliseconds kGather{20};

std::string file_name(const std::string& pattern) {
  std::string name = pattern;
  const std::string id = std::to_string(::getpid());
  for (std::size_t at = 0; (at = name.find("%p", at)) != std::string::npos; at += id.size()) {
    name.replace(at, 2, id);
  }
  return name;
}

/// Fit for a JSON string: up to the first NUL, with `?` for all but printable ASCII, quotes and backslashes.
std::string plain(std::string_view text) {
  std::string out(text.substr(0, text.find('\0')));
  std::ranges::replace_if(out, [](char c) { return c < ' ' || c > '~' || c == '"' || c == '\\'; }, '?');
  return out;
}

double microseconds(Clock::time_point at) {
  return std::chrono::duration<double, std::micro>(at.time_since_epoch()).count();
}

std::string_view verb(Operation operation) { return operation == Operation::kWrite ? "write" : "read"; }

/// The caller adds further fields and the closing brace.
void open_event(std::string& text, const Trace::Event& event, char phase, std::string_view name,
                std::string_view category, std::uint64_t id) {
  fmt::format_to(std::back_inserter(text),
                 R"(,{}{{"ph":"{}","name":"{}","cat":"{}","id":"0x{:x}","pid":{},"tid":{},"ts":{:.3f})", '\n',
                 phase, name, category, id, ::getpid(), event.thread, microseconds(event.at));
}

void format_event(std::string& text, const Trace::Event& event) {
  const auto out = std::back_inserter(text);
  const TransferTrace::Subject& subject = event.subject;
  const std::string_view name = verb(subject.operation);
  switch (event.kind) {
    case Trace::Kind::kSubmitted:
      open_event(text, event, 'b', name, "transfer", event.transfer);
      fmt::format_to(out, R"(,"args":{{"id":{},"connection":{},"bytes":{},"blocks":{}}}}})",
                     subject.application, to_underlying(subject.connection), subject.bytes, subject.blocks);
      return;
    case Trace::Kind::kStarted:
      open_event(text, event, 'n', "started", "transfer", event.transfer);
      text += '}';
      return;
    case Trace::Kind::kItemSent:
      open_event(text, event, 'b', "piece", "piece", event.item);
      fmt::format_to(out, R"(,"args":{{"transfer":"0x{:x}","bytes":{},"transport":"{}","rail":"{}"}}}})",
                     event.transfer, subject.bytes, plain({event.transport, sizeof event.transport}),
                     plain({event.rail, sizeof event.rail}));
      return;
    case Trace::Kind::kItemEnded: open_event(text, event, 'e', "piece", "piece", event.item); break;
    case Trace::Kind::kEnded: open_event(text, event, 'e', name, "transfer", event.transfer); break;
  }
  fmt::format_to(out, R"(,"args":{{"outcome":"{}"}}}})", event.outcome);
}

/// The opening bracket, and an event that names the process and says at which time of day (microseconds since
/// 1970) the trace's clock was zero.
std::string first_event() {
  const auto zero = std::chrono::system_clock::now().time_since_epoch() - Clock::now().time_since_epoch();
  return fmt::format(
      R"([{}{{"ph":"M","name":"process_name","pid":{},"args":{{"name":"{}","unix_us_at_zero":{}}}}})", '\n',
      ::getpid(), plain(program_invocation_short_name),
      std::chrono::duration_cast<std::chrono::microseconds>(zero).count());
}

/// A regular file of this user under that very name, made if there is none, for nobody else to read. It may
/// lie where others can put something in its place.
Result<UniqueFd> open_own(const std::string& name) {
  const std::string what = fmt::format("open the trace {}", name);
  UniqueFd file = UniqueFd::of(::open, name.c_str(),
                               O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
  if (!file && errno == ELOOP) return fail(ErrorCode::kUnavailable, "{}: it is a symbolic link", what);
  if (!file && errno == ENXIO) return fail(ErrorCode::kUnavailable, "{}: it is no regular file", what);
  if (!file) return tl::unexpected(system_error(what, errno));
  struct stat found{};
  if (::fstat(file.get(), &found) != 0) return tl::unexpected(system_error(what, errno));
  if (!S_ISREG(found.st_mode)) return fail(ErrorCode::kUnavailable, "{}: it is no regular file", what);
  if (found.st_uid != ::geteuid()) return fail(ErrorCode::kUnavailable, "{}: it is another user's", what);
  if (found.st_nlink != 1) return fail(ErrorCode::kUnavailable, "{}: it has another name, too", what);
  if (::fchmod(file.get(), 0600) != 0) return tl::unexpected(system_error(what, errno));
  return file;
}

}  // namespace

std::shared_ptr<Trace> Trace::of_process(const Options& options) {
  if (options.trace.empty()) return nullptr;
  const std::string name = file_name(options.trace);
  const auto trace =
      SharedByName<Trace>::of_process().get(name, [&] { return open(name, options.trace_bytes); });
  if (trace) return *trace;
  log(LogLevel::kWarning, "transfers are not traced: {}", trace.error().message);
  return nullptr;
}

Result<std::shared_ptr<Trace>> Trace::open(const std::string& name, std::uint64_t most_bytes) {
  auto opened = open_own(name);
  if (!opened) return tl::unexpected(opened.error());
  UniqueFd file = std::move(*opened);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    return fail(
        ErrorCode::kUnavailable,
        "open the trace {}: another process writes it; %p in its name, which stands for the process id, "
        "gives each one its own",
        name);
  }
  if (::ftruncate(file.get(), 0) != 0) {
    return tl::unexpected(system_error(fmt::format("empty the trace {}", name), errno));
  }
  std::shared_ptr<Trace> trace(new Trace(std::move(file), name, most_bytes));
  auto thread = start_thread("p2p-trace", [self = trace.get()] { self->run(); });
  if (!thread) return tl::unexpected(thread.error());
  trace->thread_ = std::move(*thread);
  return trace;
}

Trace::Trace(UniqueFd file, std::string name, std::uint64_t most_bytes)
    : file_(std::move(file)), name_(std::move(name)), most_bytes_(most_bytes) {}

Trace::~Trace() {
  if (birthplace_.left()) {
    if (thread_.joinable()) thread_.detach();  // it is the parent's
    return;
  }
  stop_ = 1;
  news_ = 1;
  futex_wake_all(stop_);
  futex_wake_all(news_);
  if (thread_.joinable()) thread_.join();
}

void Trace::note(Event event) {
  if (full_.load(std::memory_order_relaxed)) return;
  thread_local const int thread = ::gettid();
  event.thread = thread;
  {
    MutexLock lock(mutex_);
    if (queue_.size() == kMostQueued) {
      ++dropped_;
      return;
    }
    queue_.push_back(event);
  }
  if (news_.load(std::memory_order_relaxed) == 0 && news_.exchange(1) == 0) futex_wake_all(news_);
}

// All is written here, where signals are blocked: at its limit of file sizes a process gets one that ends it.
void Trace::run() {
  write(first_event());
  while (stop_ == 0) {
    futex_wait(news_, 0, Clock::time_point::max());
    if (news_.exchange(0) == 0) continue;
    futex_wait(stop_, 0, Clock::now() + kGather);
    guard_memory("a part of the trace", [this] { write_queued(); });
  }
  guard_memory("the end of the trace", [this] { write_queued(); });
  if (!full_) write("\n]\n");
}

void Trace::write_queued() {
  writing_.clear();
  std::uint64_t dropped = 0;
  {
    MutexLock lock(mutex_);
    writing_.swap(queue_);
    dropped = std::exchange(dropped_, 0);
  }
  if (full_) return;
  std::string text;
  for (const Event& event : writing_) format_event(text, event);
  if (dropped != 0 && !writing_.empty()) {
    fmt::format_to(std::back_inserter(text),
                   R"(,{}{{"ph":"i","name":"{} events dropped","s":"p","pid":{},"tid":0,"ts":{:.3f}}})", '\n',
                   dropped, ::getpid(), microseconds(writing_.back().at));
  }
  if (written_ + text.size() > most_bytes_) {
    full_ = true;
    log(LogLevel::kWarning, "the trace {} ends: it would be larger than {} bytes", name_, most_bytes_);
    return;
  }
  write(text);
}

void Trace::write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(file_.get(), text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      full_ = true;
      log(LogLevel::kWarning, "the trace ends: {}",
          system_error(fmt::format("write to {}", name_), errno).message);
      return;
    }
    written_ += static_cast<std::uint64_t>(wrote);
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

}  // namespace p2p::engine
