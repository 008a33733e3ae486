// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/worker.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>

#include "base/error.h"
#include "base/log.h"
#include "base/relax.h"
#include "base/underlying.h"

namespace p2p::engine {
namespace {

using Clock = std::chrono::steady_clock;

// Batches that one channel holds at most; transports have smaller windows of their own.
constexpr std::size_t kMaxFlying = 1024;

// How long the thread sleeps between looks at a channel that is busy but has no descriptor that says when.
constexpr long kBusyPollNanoseconds = 20'000;

// A caller that has just started a copy by a device most likely waits for it; the thread, should both look at
// it, would hold the caller up.
constexpr std::chrono::microseconds kCallersTurn{30};

// How long the thread looks at such a lane's channel now and then after the last copy, so that a caller who
// starts another one need not wake it.
constexpr std::chrono::milliseconds kWatch{10};

// Looks at a mutex before it is taken to be held for long.
constexpr int kTries = 1000;

// For threads that poll: one that slept for the mutex would be woken late, at the cost of the one that has
// it.
void lock_polling(Mutex& mutex) P2P_ACQUIRE(mutex) {
  for (int tries = 0; !mutex.try_lock(); ++tries) {
    if (tries < kTries) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace

// What came of a piece of work and is told once the mutex is free.
struct Worker::News {
  Ended ended;
  std::vector<std::pair<std::function<void(const Status&)>, Status>> tells;

  void deliver() {
    end_all(ended);
    for (const auto& [tell, status] : tells) tell(status);
    tells.clear();
  }
};

Result<std::unique_ptr<Worker>> Worker::start(std::chrono::nanoseconds spin, unsigned number) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll || !wake) return tl::unexpected(system_error("start a worker: epoll"));
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return tl::unexpected(system_error("start a worker: epoll_ctl"));
  }
  std::unique_ptr<Worker> worker(new Worker(spin, std::move(epoll), std::move(wake)));
  worker->thread_ = std::thread([w = worker.get()] { w->run(); });
  ::pthread_setname_np(worker->thread_.native_handle(), fmt::format("p2p-worker{}", number).c_str());
  return worker;
}

Worker::Worker(std::chrono::nanoseconds spin, UniqueFd epoll, UniqueFd wake)
    : spin_(spin), epoll_(std::move(epoll)), wake_(std::move(wake)) {}

Worker::~Worker() {
  stop_.store(true);
  asleep_.store(true);  // so that wake writes
  wake();
  thread_.join();
}

void Worker::wake() {
  if (asleep_.exchange(false)) ::eventfd_write(wake_.get(), 1);
}

void Worker::post(std::function<void(News&)> task) {
  {
    MutexLock lock(inbox_mutex_);
    inbox_.push_back(std::move(task));
  }
  wake();
}

void Worker::signal(const std::shared_ptr<Slot>& slot) {
  if (slot->signalled.exchange(true)) return;
  {
    MutexLock lock(inbox_mutex_);
    signals_.push_back(slot);
  }
  wake();
}

void Worker::attach(std::shared_ptr<Slot> slot) {
  post([this, slot = std::move(slot)](News& news) P2P_REQUIRES(mutex_) {
    if (!slot->channel) return;  // detached before it came here
    slots_.push_back(slot);
    slot->fd = slot->channel->ready_fd();
    if (slot->fd >= 0) {
      epoll_event event{.events = EPOLLIN, .data = {.ptr = slot.get()}};
      if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, slot->fd, &event) != 0) {
        slot->fd = -1;
        return drop(*slot, system_error("watch a channel: epoll_ctl"), news);
      }
    }
    activate(slot);
  });
}

void Worker::detach(Slot& slot, const Error& error) {
  News news;
  {
    MutexLock lock(mutex_);
    if (!std::exchange(slot.detached, true)) drop(slot, error, news);
  }
  news.deliver();
}

void Worker::control(const std::shared_ptr<Slot>& slot, std::vector<std::byte> message) {
  post([this, slot, message = std::move(message)](News& news) P2P_REQUIRES(mutex_) {
    if (!slot->channel) return;
    if (const Status taken = slot->channel->on_control(message); !taken)
      return drop(*slot, taken.error(), news);
    activate(slot);
  });
}

void Worker::abandon(const std::shared_ptr<Slot>& slot, const std::shared_ptr<TransferState>& state) {
  post([this, slot, state](News&) P2P_REQUIRES(mutex_) {
    if (!slot->channel) return;
    for (std::size_t i = 0; i < slot->flying.size(); ++i) {
      const auto& part = slot->flying[i].part;
      if (part && part->submission->state() == state) slot->channel->abandon(BatchId{i + 1});
    }
    activate(slot);
  });
}

Turn Worker::try_turn(Slot& slot, Ended& ended) {
  if (!mutex_.try_lock()) return Turn::kBusy;
  News news;
  bool moved = false;
  if (slot.channel) {
    moved = turn(slot, news);
    if (moved) {
      slot.moved_at = Clock::now();
      slot.called_at = slot.moved_at;
      slot.lane->note_call(slot.moved_at);
    }
    // What the descriptor does not announce is the thread's to poll, which it does by itself while it
    // watches.
    const bool watching = slot.active && slot.lane->device_copies();
    if (slot.channel && slot.busy() && slot.assists == 0 && !watching) {
      signal(slot.shared_from_this());
    }
  }
  mutex_.unlock();
  news.deliver();
  end_all(ended);
  return moved ? Turn::kMoved : Turn::kIdle;
}

void Worker::run() {
  auto moved_at = Clock::now();
  while (!stop_.load(std::memory_order_relaxed)) {
    if (left_to_callers()) {
      sleep();
      continue;
    }
    News news;
    bool moved = false;
    lock_polling(mutex_);
    moved = work(news);
    mutex_.unlock();
    news.deliver();
    if (moved) {
      moved_at = Clock::now();
    } else if (Clock::now() - moved_at < spin_) {
      relax();
    } else {
      sleep();
      moved_at = Clock::now();
    }
  }
}

bool Worker::work(News& news) {
  std::vector<std::function<void(News&)>> tasks;
  std::vector<std::shared_ptr<Slot>> signals;
  {
    MutexLock lock(inbox_mutex_);
    tasks.swap(inbox_);
    signals.swap(signals_);
  }
  for (const auto& task : tasks) task(news);
  for (const auto& slot : signals) {
    slot->signalled.store(false);
    if (!slot->channel) continue;
    slot->called_at = Clock::time_point{};
    slot->due = true;
    activate(slot);
  }
  bool moved = !tasks.empty() || !signals.empty();
  const auto now = Clock::now();
  const auto active = active_;  // a turn may drop its slot
  for (const auto& slot : active) {
    if (!std::exchange(slot->due, false) && slot->left_to_caller(now)) continue;
    if (slot->channel && turn(*slot, news)) {
      slot->moved_at = now;
      moved = true;
    }
  }
  std::erase_if(active_, [&](const auto& slot) {
    const auto watch = slot->lane->device_copies() ? Clock::duration(kWatch) : Clock::duration(spin_);
    const bool keep = slot->channel && (now - slot->moved_at < watch || slot->busy());
    slot->active = keep;
    return !keep;
  });
  return moved;
}

bool Slot::left_to_caller(Clock::time_point now) const {
  if (!lane->device_copies()) return false;
  return assists != 0 || now - (idle ? lane->called_at() : called_at.load()) < kCallersTurn;
}

// True if a look, which would hold callers up, is not due.
bool Worker::left_to_callers() {
  const auto now = Clock::now();
  if (active_.empty() || !std::all_of(active_.begin(), active_.end(),
                                      [&](const auto& slot) { return slot->left_to_caller(now); })) {
    return false;
  }
  MutexLock lock(inbox_mutex_);
  return inbox_.empty() && signals_.empty();
}

void Worker::sleep() {
  const bool busy = !active_.empty();
  asleep_.store(true);
  {
    MutexLock lock(inbox_mutex_);
    if (!inbox_.empty() || !signals_.empty() || stop_.load()) {
      asleep_.store(false);
      return;
    }
  }
  std::array<epoll_event, 64> events;
  const timespec nap{0, kBusyPollNanoseconds};
  const int count =
      ::epoll_pwait2(epoll_.get(), events.data(), events.size(), busy ? &nap : nullptr, nullptr);
  asleep_.store(false);
  if (count <= 0) return;
  MutexLock lock(mutex_);
  for (const epoll_event& event : std::span(events).first(static_cast<std::size_t>(count))) {
    if (event.data.ptr == nullptr) {
      eventfd_t ignored = 0;
      ::eventfd_read(wake_.get(), &ignored);
      continue;
    }
    const auto found = std::find_if(slots_.begin(), slots_.end(),
                                    [&](const auto& slot) { return slot.get() == event.data.ptr; });
    if (found != slots_.end()) activate(*found);
  }
}

void Worker::activate(const std::shared_ptr<Slot>& slot) {
  slot->moved_at = Clock::now();
  if (slot->active) return;
  slot->active = true;
  active_.push_back(slot);
}

bool Worker::turn(Slot& slot, News& news) {
  const auto progress = [&]() P2P_REQUIRES(mutex_) {
    const bool moved = slot.channel->progress(slot.completions);
    for (Completion& completion : slot.completions) complete(slot, completion, news);
    slot.completions.clear();
    return moved;
  };
  bool moved = progress();
  if (!slot.ready && slot.channel->state() == ChannelState::kReady) {
    slot.ready = true;
    slot.description = slot.channel->describe();
    moved = true;
    slot.lane->add(slot.shared_from_this());
    news.tells.emplace_back(slot.tell, Status{});
  }
  if (slot.ready && slot.channel->state() == ChannelState::kReady && pump(slot, news)) {
    moved = true;
    if (slot.channel->busy()) progress();  // a copy is done when post returns
  }
  slot.idle.store(!slot.busy(), std::memory_order_relaxed);
  if (slot.channel->state() == ChannelState::kFailed) {
    drop(slot, slot.channel->error(), news);
    return true;
  }
  return moved;
}

bool Worker::pump(Slot& slot, News& news) {
  bool moved = false;
  slot.lane->look_at_gates(slot, news.ended);
  while (true) {
    if (slot.free.empty()) {
      if (slot.flying.size() == kMaxFlying) return moved;
      slot.free.push_back(static_cast<std::uint32_t>(slot.flying.size()));
      slot.flying.emplace_back();
    }
    auto piece = slot.lane->take(news.ended);
    if (!piece) return moved;
    const std::uint32_t index = slot.free.back();
    const Submission& submission = *piece->part->submission;
    const Batch batch{BatchId{index + 1}, submission.list().operation, piece->cut.segments, piece->cut.skip,
                      piece->cut.bytes};
    if (!slot.channel->post(batch)) {
      slot.lane->give_back(std::move(*piece));
      return moved;
    }
    slot.free.pop_back();
    slot.flying[index] = std::move(*piece);
    moved = true;
  }
}

void Worker::complete(Slot& slot, Completion& completion, News& news) {
  const std::uint64_t index = to_underlying(completion.id) - 1;
  if (index >= slot.flying.size() || !slot.flying[index].part) {
    log(LogLevel::kError, "{}: completed batch {} twice", slot.channel->describe(), index + 1);
    return;
  }
  Piece piece = std::move(slot.flying[index]);
  slot.flying[index] = {};
  slot.free.push_back(static_cast<std::uint32_t>(index));
  Submission& submission = *piece.part->submission;
  if (!completion.status) {
    // A lost channel's pieces go over another one; the last channel's end fails them.
    if (completion.status.error().code == ErrorCode::kPeerGone && !submission.doomed()) {
      slot.lane->count_retry();
      slot.lane->give_back(std::move(piece));
      return;
    }
    submission.set_error(std::move(completion.status.error()));
  }
  piece.part->close_one(news.ended);
}

void Worker::drop(Slot& slot, const Error& error, News& news) {
  slot.detached = true;
  const auto self = slot.shared_from_this();
  if (slot.fd >= 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, slot.fd, nullptr);
  slot.fd = -1;
  slot.channel.reset();
  for (Piece& piece : slot.flying) {
    if (!piece.part) continue;
    piece.part->submission->set_error(error);
    piece.part->close_one(news.ended);
  }
  slot.flying.clear();
  slot.free.clear();
  std::erase(slots_, self);
  load_.fetch_sub(1, std::memory_order_relaxed);
  slot.lane->remove(slot, error, news.ended);
  news.tells.emplace_back(slot.tell, tl::unexpected(error));
}

void Worker::arm(Slot& slot, bool on) {
  if (slot.fd < 0) return;
  epoll_event event{.events = on ? std::uint32_t{EPOLLIN} : 0, .data = {.ptr = &slot}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, slot.fd, &event);
}

Assist::Assist(Slot& slot) : slot_(nullptr) {
  Worker& worker = *slot.worker;
  if (!worker.mutex_.try_lock()) return;
  slot_ = &slot;
  if (slot.assists++ == 0) worker.arm(slot, false);
  worker.mutex_.unlock();
}

Assist::~Assist() {
  if (slot_ == nullptr) return;
  Worker& worker = *slot_->worker;
  lock_polling(worker.mutex_);
  if (--slot_->assists == 0) {
    worker.arm(*slot_, true);
    const bool watching = slot_->active && slot_->lane->device_copies();
    if (slot_->channel && slot_->busy() && !watching) worker.signal(slot_->shared_from_this());
  }
  worker.mutex_.unlock();
}

}  // namespace p2p::engine
