// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "conformance/peer.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "conformance/cut.h"

namespace p2p::conformance {

struct Peer::Link : ControlLink {
  std::uint32_t channel = 0;
  SendControl send_control;

  void send(std::span<const std::byte> message) override {
    send_control(channel, Bytes(message.begin(), message.end()));
  }
};

Status Job::status() const {
  for (const Status& outcome : outcomes) {
    if (!outcome) return outcome;
  }
  return {};
}

Peer::Peer(std::unique_ptr<Transport> transport)
    : transport_(std::move(transport)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { run(); }) {}

Peer::~Peer() {
  close();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
  EXPECT_EQ(violation_, "");
}

Status Peer::open(const ChannelSetup& setup, SendControl send_control) {
  Status status;
  call([&](auto& channels) {
    ChannelSetup mine = setup;
    mine.path = {.local_address = "127.0.0.1", .remote_address = "127.0.0.1"};
    for (const Rail& rail : transport_->rails(mine.path)) {
      mine.rail = rail;
      for (unsigned i = transport_->channels_per_rail(rail); i != 0 && status; --i) {
        auto link = std::make_unique<Link>();
        link->channel = static_cast<std::uint32_t>(links_.size());
        link->send_control = send_control;
        mine.control = link.get();
        links_.push_back(std::move(link));
        auto channel = transport_->open_channel(mine);
        if (channel) {
          channels.push_back(*std::move(channel));
        } else {
          status = tl::unexpected(channel.error());
        }
      }
    }
  });
  return status;
}

std::vector<Bytes> Peer::addresses() {
  std::vector<Bytes> addresses;
  call([&](auto& channels) {
    for (const auto& channel : channels) addresses.push_back(channel->address());
  });
  return addresses;
}

Status Peer::connect(const std::vector<Bytes>& peer_addresses) {
  Status status;
  call([&](auto& channels) {
    if (channels.size() != peer_addresses.size()) {
      status =
          fail(ErrorCode::kProtocol, "{} channels and {} addresses", channels.size(), peer_addresses.size());
    }
    for (std::size_t i = 0; status && i < channels.size(); ++i)
      status = channels[i]->connect(peer_addresses[i]);
  });
  return status;
}

void Peer::deliver(std::uint32_t channel, Bytes message) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back([this, channel, message = std::move(message)] {
      if (channel < channels_.size()) {
        const Status taken = channels_[channel]->on_control(message);
        EXPECT_TRUE(taken) << taken.error().message;
      }
    });
  }
  wake();
}

Status Peer::wait_ready() {
  const auto is_ready = [](ChannelState state) { return state == ChannelState::kReady; };
  const auto has_failed = [](ChannelState state) { return state == ChannelState::kFailed; };
  const bool settled = wait_for(kPatience, [&] {
    return std::ranges::all_of(states_, is_ready) || std::ranges::any_of(states_, has_failed);
  });
  const std::lock_guard lock(mutex_);
  if (!settled) return fail(ErrorCode::kTimedOut, "wait until the channels are ready: they still connect");
  if (std::ranges::any_of(states_, has_failed)) return tl::unexpected(first_error_);
  return {};
}

bool Peer::wait_failed(std::chrono::nanoseconds timeout) {
  return wait_for(timeout, [&] {
    return std::ranges::all_of(states_, [](ChannelState state) { return state == ChannelState::kFailed; });
  });
}

Error Peer::channel_error() {
  const std::lock_guard lock(mutex_);
  return first_error_;
}

std::shared_ptr<RemoteKey> Peer::import(const RegionOffer& offer) {
  auto key = transport_->import_region(offer.info, offer.exported);
  if (!key) {
    ADD_FAILURE() << key.error().message;
    std::abort();
  }
  return *std::move(key);
}

std::shared_ptr<Job> Peer::submit(Operation operation, std::vector<Segment> segments) {
  auto job = std::make_shared<Job>();
  job->segments = std::move(segments);
  job->batches = cut(operation, job->segments, transport_->capabilities());
  job->outcomes.resize(job->batches.size());
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back([this, job] {
      for (std::size_t i = 0; i < job->batches.size(); ++i) {
        job->batches[i].id = BatchId{++last_batch_};
        waiting_.push_back({job, i});
      }
    });
  }
  wake();
  return job;
}

bool Peer::wait(const Job& job, std::chrono::nanoseconds timeout) {
  return wait_for(timeout, [&] { return job.ended == job.batches.size(); });
}

bool Peer::wait_started(const Job& job, std::size_t ended) {
  return wait_for(kPatience, [&] { return job.ended >= ended; });
}

Status Peer::transfer(Operation operation, std::vector<Segment> segments) {
  const auto job = submit(operation, std::move(segments));
  if (!wait(*job))
    return fail(ErrorCode::kTimedOut, "{} of {} batches ended", job->ended, job->batches.size());
  return job->status();
}

void Peer::call(const std::function<void(std::vector<std::unique_ptr<Channel>>&)>& task) {
  bool done = false;
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back([&] {
      task(channels_);
      publish_states();
      const std::lock_guard done_lock(mutex_);
      done = true;
    });
  }
  wake();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done; });
}

void Peer::close() {
  call([this](auto&) { destroy_channels({ErrorCode::kCancelled, "the harness closed the channels"}); });
}

void Peer::end_session() {
  call([this](auto&) {
    const Error gone{ErrorCode::kPeerGone, "the session has ended"};
    destroy_channels(gone);
    const std::lock_guard lock(mutex_);
    if (first_error_.message.empty()) first_error_ = gone;
  });
}

void Peer::destroy_channels(const Error& why) {
  channels_.clear();
  for (const auto& [id, posted] : posted_) end(posted, tl::unexpected(why));
  for (const Posted& waiting : waiting_) end(waiting, tl::unexpected(why));
  posted_.clear();
  waiting_.clear();
}

void Peer::run() {
  std::vector<Completion> completions;
  while (true) {
    bool moved = run_tasks();
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    for (const auto& channel : channels_) moved |= channel->progress(completions);
    take(completions);
    publish_states();
    moved |= post_waiting();
    if (!moved) sleep();
  }
}

bool Peer::run_tasks() {
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (const auto& task : tasks) {
    task();
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  return !tasks.empty();
}

// A channel that refuses must take more after a completion, so the thread may sleep once all have refused.
bool Peer::post_waiting() {
  bool moved = false;
  for (bool taken = true; taken && !waiting_.empty();) {
    taken = false;
    for (const auto& channel : channels_) {
      if (waiting_.empty() || channel->state() != ChannelState::kReady) continue;
      const Posted next = waiting_.front();
      const Batch& batch = next.job->batches[next.index];
      if (!channel->post(batch)) continue;
      posted_.emplace(static_cast<std::uint64_t>(batch.id), next);
      waiting_.pop_front();
      taken = moved = true;
    }
  }
  const bool lost = !channels_.empty() && std::ranges::all_of(channels_, [](const auto& channel) {
    return channel->state() == ChannelState::kFailed;
  });
  if (lost && !waiting_.empty()) {
    for (const Posted& waiting : waiting_) end(waiting, fail(ErrorCode::kPeerGone, "no channel is left"));
    waiting_.clear();
    moved = true;
  }
  return moved;
}

void Peer::take(std::vector<Completion>& completions) {
  for (Completion& completion : completions) {
    const auto found = posted_.find(static_cast<std::uint64_t>(completion.id));
    if (found == posted_.end()) {
      const std::lock_guard lock(mutex_);
      violation_ = "a batch was completed that was not under way";
      continue;
    }
    end(found->second, std::move(completion.status));
    posted_.erase(found);
  }
  completions.clear();
}

void Peer::end(const Posted& posted, Status status) {
  const std::lock_guard lock(mutex_);
  posted.job->outcomes[posted.index] = std::move(status);
  ++posted.job->ended;
  changed_.notify_all();
}

void Peer::publish_states() {
  const std::lock_guard lock(mutex_);
  states_.clear();
  for (const auto& channel : channels_) {
    states_.push_back(channel->state());
    if (states_.back() == ChannelState::kFailed && first_error_.message.empty())
      first_error_ = channel->error();
  }
  changed_.notify_all();
}

void Peer::sleep() {
  std::vector<pollfd> fds{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  int timeout = -1;
  for (const auto& channel : channels_) {
    if (channel->busy()) timeout = 0;
    if (channel->state() == ChannelState::kFailed) continue;
    fds.push_back({.fd = channel->ready_fd(), .events = POLLIN, .revents = 0});
  }
  ::poll(fds.data(), fds.size(), timeout);
  eventfd_t ignored = 0;
  ::eventfd_read(wake_.get(), &ignored);
}

void Peer::wake() { ::eventfd_write(wake_.get(), 1); }

bool Peer::wait_for(std::chrono::nanoseconds timeout, const std::function<bool()>& condition) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, condition);
}

}  // namespace p2p::conformance
