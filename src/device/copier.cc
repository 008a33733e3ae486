// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/copier.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/mutex.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/error.h"

namespace p2p::device {
namespace {

constexpr std::size_t kKernel = 0;
constexpr std::size_t kBulk = 1;
constexpr std::size_t kRehearsedBlocks = kernels::kInlineBlocks + 1;
constexpr std::chrono::milliseconds kAskAfter{2};
constexpr std::chrono::seconds kSettleWithin{5};

/// What kernels and copies that do not end read and write.
struct Left {
  cuda::HostBuffer blocks;
  cuda::HostBuffer words;
  cuda::DeviceBuffer arrivals;
  std::shared_ptr<Standby> standby;
};

/// Keeps it until the process ends.
void leave(Left left) {
  struct All {
    Mutex mutex;
    std::vector<Left> left P2P_GUARDED_BY(mutex);
  };
  static All& all = *new All;
  const MutexLock lock(all.mutex);
  all.left.push_back(std::move(left));
}

}  // namespace

Result<std::unique_ptr<Copier>> Copier::open(int device, const Limits& limits,
                                             std::shared_ptr<Standby> standby) {
  std::unique_ptr<Copier> copier(new Copier(device, limits));
  // On that device, so that the driver makes no context on another one for pinned memory.
  const cuda::DeviceGuard guard(device);
  Status status = guard.status();
  copier->standby_ = std::move(standby);
  if (status) status = copier->allocate();
  if (status) status = copier->rehearse_all();
  if (!status) return tl::unexpected(std::move(status.error()));
  copier->lists_.resize(limits.lists);
  for (std::size_t i = 0; i < limits.lists; ++i) {
    copier->lists_[i].slot_ = i;
    copier->free_.push_back(&copier->lists_[i]);
  }
  return copier;
}

Status Copier::allocate() {
  using cuda::Stream;
  const std::size_t count = limits_.lists * limits_.blocks + kRehearsedBlocks;
  Status status = move_into(blocks_, cuda::HostBuffer::allocate(count * sizeof(kernels::CopyBlock)));
  if (status) status = move_into(words_, cuda::HostBuffer::allocate((limits_.lists * 2 + 1) * kLine));
  if (status) {
    status = move_into(arrivals_,
                       cuda::DeviceBuffer::allocate(device_, limits_.lists * kLine + 2 * kRehearsed, true));
  }
  for (auto* streams : {&kernels_, &bulk_}) {
    for (Stream& stream : *streams) {
      if (status) status = move_into(stream, Stream::open(device_, Stream::Priority::kHigh));
    }
  }
  if (!status) return status;
  std::memset(words_.data(), 0, words_.size());
  std::fill_n(empty_blocks(), kRehearsedBlocks, kernels::CopyBlock{});
  if (limits_.standby_ctas == 0 || standby_) return {};
  auto standby = Standby::open(device_, {.ctas = limits_.standby_ctas});
  if (!standby) return tl::unexpected(std::move(standby.error()));
  standby_ = std::move(*standby);
  return {};
}

// Nothing here is looked at again, and so nothing is waited for.
Status Copier::rehearse_all() {
  Status status;
  for (const cuda::Stream& stream : kernels_) {
    // Short lists and long ones have kernels of their own.
    for (const std::size_t count : {std::size_t{1}, kRehearsedBlocks}) {
      if (limits_.bulk_bytes == 0 || !status) break;
      const kernels::CopyList empty{.blocks = empty_blocks(), .count = count};
      const int code = kernels::launch_copy(empty, limits_.grid, {}, stream.handle());
      status = cuda::check(code, fmt::format("start a kernel on CUDA device {}", device_));
    }
    if (limits_.bulk_bytes == 0 || !status) break;
    status = cuda::check(kernels::launch_copy(kernels::CopyRows{}, limits_.grid, {}, stream.handle()),
                         fmt::format("start a kernel on CUDA device {}", device_));
  }
  for (const cuda::Stream& stream : bulk_) {
    if (status) status = stream.copy(scratch_of_device() + kRehearsed, scratch_of_host(), kLine);
    if (status) status = stream.copy(scratch_of_host(), scratch_of_device(), kLine);
    if (status) status = stream.signal(reinterpret_cast<std::uint32_t*>(scratch_of_host()), 0);
  }
  if (status && standby_) standby_->rehearse();
  return status;
}

Status Copier::rehearse(const std::byte* source, std::byte* target, std::size_t bytes) {
  bytes = std::min(bytes, kRehearsed);
  const cuda::DeviceGuard guard(device_);
  Status status = guard.status();
  std::byte* const zeros = scratch_of_device();
  std::byte* const sink = zeros + kRehearsed;
  for (const cuda::Stream& stream : bulk_) {
    if (status) status = stream.copy(sink, source, bytes);
    if (status && target != nullptr) status = stream.copy(target, zeros, bytes);
  }
  for (const cuda::Stream& stream : kernels_) {
    if (limits_.bulk_bytes == 0 || !status) break;
    std::array<kernels::CopyBlock, 2> blocks{{{source, sink, bytes}, {zeros, target, bytes}}};
    const std::size_t count = target == nullptr ? 1 : 2;
    const kernels::CopyList list{
        .blocks = blocks.data(), .count = count, .total = count * bytes, .largest = bytes};
    status = cuda::check(kernels::launch_copy(list, limits_.grid, {}, stream.handle()),
                         fmt::format("start a kernel on CUDA device {}", device_));
  }
  return status;
}

bool Copier::quiet() const {
  for (const cuda::Stream* stream : {&kernels_[0], &kernels_[1], &bulk_[0], &bulk_[1]}) {
    if (!*stream) continue;
    const auto idle = stream->idle();
    if (idle && !*idle) return false;
  }
  return true;
}

Result<std::vector<cuda::StreamMark>> Copier::marks() const {
  std::vector<cuda::StreamMark> marks;
  for (const cuda::Stream* stream : {&kernels_[0], &kernels_[1], &bulk_[0], &bulk_[1]}) {
    auto mark = cuda::StreamMark::set(stream->handle());
    if (!mark) return tl::unexpected(std::move(mark.error()));
    marks.push_back(std::move(*mark));
  }
  return marks;
}

// A kernel that stands by, which others use as well, goes on after it.
bool Copier::at_rest() {
  return quiet() &&
         std::ranges::all_of(lists_, [this](List& list) { return !list.order_ || finished(list); });
}

bool Copier::settle() {
  if (!settle_by_) settle_by_ = std::chrono::steady_clock::now() + kSettleWithin;
  while (!at_rest()) {
    if (std::chrono::steady_clock::now() >= *settle_by_) return false;
  }
  return true;
}

Copier::~Copier() {
  if (settle()) return;
  log(LogLevel::kError,
      "CUDA device {} still copies after {} s; its channel is closed all the same, and {} bytes are left "
      "to it, which it may still use",
      device_, kSettleWithin.count(), blocks_.size() + words_.size() + arrivals_.size());
  leave({std::move(blocks_), std::move(words_), std::move(arrivals_), std::move(standby_)});
}

std::uint32_t* Copier::word_of(const List& list, std::size_t which) const {
  return reinterpret_cast<std::uint32_t*>(words_.data() + (list.slot_ * 2 + which) * kLine);
}

const cuda::Stream& Copier::stream_of(const List& list, std::size_t which) const {
  return (which == kBulk ? bulk_ : kernels_)[list.stream_];
}

Copier::List* Copier::take() {
  if (free_.empty()) return nullptr;
  List* const list = free_.back();
  free_.pop_back();
  list->stream_ = list->slot_ % kernels_.size();
  list->blocks_ = {.blocks = blocks_of(list->slot_)};
  list->bulk_.clear();
  list->rows_.clear();
  list->waits_ = {};
  list->order_ = {};
  list->status_ = {};
  ++list->turn_;
  return list;
}

// A copy engine starts faster than a kernel, but takes one piece at a time.
void Copier::choose_engine(List& list) const {
  if (list.blocks_.count + list.bulk_.size() > limits_.bulk_count) return;
  list.bulk_.insert(list.bulk_.end(), list.blocks_.blocks, list.blocks_.blocks + list.blocks_.count);
  list.blocks_.count = 0;
}

void Copier::start(List& list) {
  list.asked_ = std::chrono::steady_clock::now();
  if (!order(list)) launch(list);
}

// A single short piece, if a kernel stands by.
bool Copier::order(List& list) {
  const bool single = list.blocks_.count == 1 && list.bulk_.empty() && list.rows_.empty();
  if (!standby_ || !single || list.blocks_.total > list.standby_bytes_) return false;
  list.order_ = standby_->order(list.blocks_.blocks[0]);
  return list.order_.has_value();
}

void Copier::launch(List& list) {
  choose_engine(list);
  const cuda::DeviceGuard guard(device_);
  list.status_ = guard.status();
  if (list.status_ && (list.blocks_.count != 0 || !list.rows_.empty())) start_kernel(list);
  if (list.status_ && !list.bulk_.empty()) start_bulk(list);
}

// One after the other on one stream; the last one tells the host.
void Copier::start_kernel(List& list) {
  const kernels::Signal signal{word_of(list, kKernel), list.turn_,
                               reinterpret_cast<std::uint32_t*>(arrivals_.data() + list.slot_ * kLine)};
  const cuda::Stream& stream = stream_of(list, kKernel);
  int code = 0;
  std::size_t started = 0;
  if (list.blocks_.count != 0) {
    const kernels::Signal told = list.rows_.empty() ? signal : kernels::Signal{};
    code = kernels::launch_copy(list.blocks_, limits_.grid, told, stream.handle());
    if (code == 0) ++started;
  }
  for (const kernels::CopyRows& rows : list.rows_) {
    if (code != 0) break;
    const kernels::Signal told = &rows == &list.rows_.back() ? signal : kernels::Signal{};
    code = kernels::launch_copy(rows, limits_.grid, told, stream.handle());
    if (code == 0) ++started;
  }
  if (code == 0) {
    list.waits_[kKernel] = true;
    return;
  }
  // What has begun is through before anybody learns that the list failed.
  if (started != 0) static_cast<void>(stream.synchronize());
  list.status_ =
      tl::unexpected(cuda::error_of(code, fmt::format("copy {} blocks and {} sets of rows on CUDA device {}",
                                                      list.blocks_.count, list.rows_.size(), device_)));
}

void Copier::start_bulk(List& list) {
  const cuda::Stream& stream = stream_of(list, kBulk);
  bool any = false;
  for (const kernels::CopyBlock& block : list.bulk_) {
    list.status_ = stream.copy(block.target, block.source, block.bytes);
    if (!list.status_) break;
    any = true;
  }
  // Those that were started have to end before the list does, whatever became of the others.
  if (!any) return;
  const Status signalled = stream.signal(word_of(list, kBulk), list.turn_);
  if (signalled) {
    list.waits_[kBulk] = true;
  } else {
    static_cast<void>(stream.synchronize());
    if (list.status_) list.status_ = signalled;
  }
}

bool Copier::finished(List& list) {
  if (list.order_ && standby_->finished(*list.order_)) list.order_.reset();
  for (const std::size_t which : {kKernel, kBulk}) {
    if (!list.waits_[which]) continue;
    const std::atomic_ref<std::uint32_t> word(*word_of(list, which));
    if (word.load(std::memory_order_acquire) == list.turn_) list.waits_[which] = false;
  }
  if (!list.order_ && !list.waits_[kKernel] && !list.waits_[kBulk]) return true;
  const auto now = std::chrono::steady_clock::now();
  if (now - list.asked_ < kAskAfter) return false;
  list.asked_ = now;
  return list.order_ ? order_ended(list) : ended_by_error(list);
}

// A device whose work failed will write no word.
bool Copier::ended_by_error(List& list) {
  bool failed = false;
  for (const std::size_t which : {kKernel, kBulk}) {
    if (!list.waits_[which]) continue;
    const auto idle = stream_of(list, which).idle();
    if (idle) continue;
    list.status_ = tl::unexpected(idle.error());
    failed = true;
  }
  if (failed) list.waits_ = {};
  return failed;
}

// An order that came too late for its kernel is carried out by copy engine.
bool Copier::order_ended(List& list) {
  const auto lost = standby_->lost(*list.order_);
  if (lost && !*lost) return false;
  list.order_.reset();
  if (lost) {
    launch(list);
    return !list.status_ && !list.waits_[kKernel] && !list.waits_[kBulk];
  }
  list.status_ = tl::unexpected(lost.error());
  return true;
}

void Copier::give_back(List& list) { free_.push_back(&list); }

}  // namespace p2p::device
