// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/directory.h"

#include <algorithm>
#include <condition_variable>
#include <string>
#include <thread>
#include <utility>

#include "api/directory_drivers.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/memory_guard.h"
#include "base/mutex.h"
#include "base/thread.h"

namespace p2p {
namespace {

using Clock = std::chrono::steady_clock;

// Between two looks of who waits for a name or for a change.
constexpr std::chrono::milliseconds kLook{200};

std::vector<DirectoryChange> changes(const std::vector<DirectoryEntry>& from,
                                     const std::vector<DirectoryEntry>& to) {
  const auto named = [](const std::vector<DirectoryEntry>& list, const std::string& name) {
    return std::ranges::find(list, name, &DirectoryEntry::name) != list.end();
  };
  std::vector<DirectoryChange> found;
  for (const DirectoryEntry& entry : to) {
    if (std::ranges::find(from, entry) == from.end()) found.push_back({entry, false});
  }
  for (const DirectoryEntry& entry : from) {
    if (!named(to, entry.name)) found.push_back({entry, true});
  }
  return found;
}

}  // namespace

/// The driver, and the thread that renews what was published.
class Directory::Keeper {
 public:
  Keeper(std::unique_ptr<directories::Driver> driver, std::chrono::milliseconds lease)
      : driver_(std::move(driver)), lease_(lease) {}

  ~Keeper() {
    if (thread_.joinable()) {
      {
        MutexLock lock(mutex_);
        stop_ = true;
      }
      wake_.notify_all();
      thread_.join();
    }
    driver_->end(published_);
  }

  directories::Driver& driver() const { return *driver_; }

  Status add(const DirectoryEntry& entry) {
    const MutexLock writing(writing_);
    if (Status put = driver_->put(entry); !put) return put;
    MutexLock lock(mutex_);
    published_[entry.name] = entry;
    if (thread_.joinable()) return {};
    return move_into(thread_, start_thread("p2p-directory", [this] {
                       guard_memory("renewing what was published", [this] { run(); });
                     }));
  }

  Status forget(const std::string& name) {
    const MutexLock writing(writing_);
    {
      MutexLock lock(mutex_);
      if (published_.erase(name) == 0) return {};
    }
    return driver_->remove(name);
  }

 private:
  void run() {
    bool reached = true;
    while (wait_for_its_time()) {
      const Status renewed = renew();
      if (!renewed && reached) {
        log(LogLevel::kWarning, "what this process has published cannot be renewed, and is tried again: {}",
            renewed.error().message);
      }
      reached = renewed.has_value();
    }
  }

  /// False at the end.
  bool wait_for_its_time() {
    MutexLock lock(mutex_);
    const auto due = Clock::now() + lease_ / 3;
    while (!stop_ && Clock::now() < due) wake_.wait_until(mutex_, due);
    return !stop_;
  }

  Status renew() {
    const MutexLock writing(writing_);
    directories::Entries entries;
    {
      MutexLock lock(mutex_);
      entries = published_;
    }
    return driver_->renew(entries);
  }

  const std::unique_ptr<directories::Driver> driver_;
  const std::chrono::milliseconds lease_;
  Mutex writing_;  // before mutex_: what is renewed is not what has just been changed or withdrawn
  Mutex mutex_;
  std::condition_variable_any wake_;
  directories::Entries published_ P2P_GUARDED_BY(mutex_);
  bool stop_ P2P_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

Directory::Directory(std::unique_ptr<Keeper> keeper) : keeper_(std::move(keeper)) {}
Directory::Directory(Directory&& other) noexcept = default;
Directory& Directory::operator=(Directory&& other) noexcept = default;
Directory::~Directory() = default;

Result<Directory> Directory::use(const std::string& where, std::chrono::milliseconds lease) {
  if (lease < std::chrono::seconds{1} || lease > std::chrono::seconds{10}) {
    return fail(ErrorCode::kInvalidArgument, "use the directory {} with a lease of {} ms: from 1 to 10 s",
                where, lease.count());
  }
  auto driver = directories::Driver::of(where, lease);
  if (!driver) return tl::unexpected(driver.error());
  return Directory(std::make_unique<Keeper>(std::move(*driver), lease));
}

Status Directory::publish(const DirectoryEntry& entry) {
  if (entry.name.empty() || entry.name.find('\n') != std::string::npos) {
    return fail(ErrorCode::kInvalidArgument, "publish \"{}\": a name is one line", entry.name);
  }
  if (entry.address.empty() || entry.port == 0) {
    return fail(ErrorCode::kInvalidArgument, "publish \"{}\" as \"{}\", port {}: that is no place",
                entry.name, entry.address, entry.port);
  }
  return keeper_->add(entry);
}

Status Directory::publish(const std::string& name, const Endpoint& endpoint, std::int32_t gpu) {
  return publish({name, endpoint.address(), endpoint.port(), std::to_string(gpu)});
}

Status Directory::withdraw(const std::string& name) { return keeper_->forget(name); }

Result<DirectoryEntry> Directory::lookup(const std::string& name, std::chrono::nanoseconds timeout) const {
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    const auto left = deadline - Clock::now();
    auto found = keeper_->driver().get(name);
    if (found && *found) return std::move(**found);
    if (left.count() <= 0) {
      if (!found) return tl::unexpected(found.error());
      return fail(ErrorCode::kNotFound, "nobody is listed as \"{}\"", name);
    }
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(kLook, left));
  }
}

Result<std::vector<DirectoryEntry>> Directory::entries() const {
  auto found = keeper_->driver().all();
  if (!found) return tl::unexpected(found.error());
  std::vector<DirectoryEntry> list;
  for (auto& [name, entry] : *found) list.push_back(std::move(entry));
  return list;
}

Result<std::vector<DirectoryChange>> Directory::watch(std::vector<DirectoryEntry>& known,
                                                      std::chrono::nanoseconds timeout) const {
  const auto deadline = Clock::now() + timeout;
  std::string looked;
  for (;;) {
    const auto left = deadline - Clock::now();
    auto mark = keeper_->driver().mark();
    if (!mark) return tl::unexpected(mark.error());
    if (mark->empty() || *mark != looked) {
      auto now = entries();
      if (!now) return tl::unexpected(now.error());
      auto found = changes(known, *now);
      known = std::move(*now);
      if (!found.empty()) return found;
      looked = std::move(*mark);
    }
    if (left.count() <= 0) return std::vector<DirectoryChange>();
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(kLook, left));
  }
}

}  // namespace p2p
