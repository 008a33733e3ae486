// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/digester.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <thread>
#include <utility>

#include "base/block_digest.h"
#include "base/error.h"
#include "base/log.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/error.h"

namespace p2p::device {
namespace {

static_assert(kDigestBlock == kernels::kHashedBlock);

constexpr std::size_t kLine = 64;
constexpr std::chrono::milliseconds kLookAgainAfter{2};
constexpr std::chrono::seconds kEndWithin{5};

std::uint64_t blocks_of(std::uint64_t size) { return (size + kDigestBlock - 1) / kDigestBlock; }

/// Room for `bytes`, in powers of two, so that it is seldom made.
template <class Buffer, class Make>
Status grow(Buffer& buffer, std::size_t bytes, Make make) {
  if (buffer.size() >= bytes) return {};
  return move_into(buffer, make(std::bit_ceil(bytes)));
}

}  // namespace

/// What one digest needs at a time.
struct Digester::Work::Slot {
  cuda::Stream stream;
  cuda::HostBuffer word;        // which tells the end
  cuda::HostBuffer blocks;      // their digests
  cuda::HostBuffer runs;        // of a list that is too long for the launch, on its way to
  cuda::DeviceBuffer listed;    // where the kernel reads it
  cuda::DeviceBuffer arrivals;  // zero
  std::uint32_t turn = 0;

  static Result<std::unique_ptr<Slot>> make(int device) {
    auto slot = std::make_unique<Slot>();
    Status status = move_into(slot->stream, cuda::Stream::open(device, cuda::Stream::Priority::kHigh));
    if (status) status = move_into(slot->word, cuda::HostBuffer::allocate(kLine));
    if (status) status = move_into(slot->arrivals, cuda::DeviceBuffer::allocate(device, kLine, true));
    if (!status) return tl::unexpected(std::move(status.error()));
    *slot->end() = 0;
    return slot;
  }

  std::uint32_t* end() const { return reinterpret_cast<std::uint32_t*>(word.data()); }

  Status make_room(int device, std::uint64_t blocks_needed, std::size_t runs_needed) {
    const auto on_host = [](std::size_t bytes) { return cuda::HostBuffer::allocate(bytes); };
    Status status = grow(blocks, blocks_needed * sizeof(std::uint64_t), on_host);
    const std::size_t list = runs_needed * sizeof(kernels::DigestRun);
    if (status) status = grow(runs, list, on_host);
    if (!status || runs_needed <= kernels::kInlineRuns) return status;
    return grow(listed, list, [&](std::size_t bytes) { return cuda::DeviceBuffer::allocate(device, bytes); });
  }
};

Digester::Digester(int device) : device_(device) {}
Digester::~Digester() = default;

Result<std::unique_ptr<Digester::Work>> Digester::start(std::span<const std::span<const std::byte>> ranges) {
  const cuda::DeviceGuard guard(device_);
  if (!guard.status()) return tl::unexpected(guard.status().error());
  std::unique_ptr<Work::Slot> slot;
  {
    const MutexLock lock(mutex_);
    if (!free_.empty()) {
      slot = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!slot) {
    auto made = Work::Slot::make(device_);
    if (!made) return tl::unexpected(std::move(made.error()));
    slot = std::move(*made);
  }
  std::unique_ptr<Work> work(new Work(shared_from_this(), std::move(slot)));
  std::uint64_t total = 0;
  for (const auto& range : ranges) total += range.size();
  if (auto started = work->start(ranges, total); !started) return tl::unexpected(std::move(started.error()));
  return work;
}

Digester::Work::Work(std::shared_ptr<Digester> digester, std::unique_ptr<Slot> slot)
    : digester_(std::move(digester)), slot_(std::move(slot)) {}

Status Digester::Work::start(std::span<const std::span<const std::byte>> ranges, std::uint64_t total) {
  size_ = total;
  if (total == 0) return {};
  if (auto room = slot_->make_room(digester_->device_, blocks_of(total), ranges.size()); !room) return room;
  auto* const runs = reinterpret_cast<kernels::DigestRun*>(slot_->runs.data());
  kernels::DigestList list{.runs = runs, .total = total};
  std::uint64_t begin = 0;
  for (const auto& range : ranges) {
    if (range.empty()) continue;
    runs[list.count++] = {range.data(), begin};
    begin += range.size();
  }
  if (list.count > kernels::kInlineRuns) {
    list.runs = reinterpret_cast<const kernels::DigestRun*>(slot_->listed.data());
    auto copied = slot_->stream.copy(slot_->listed.data(), runs, list.count * sizeof(kernels::DigestRun));
    if (!copied) return copied;
  }
  const kernels::Signal signal{slot_->end(), ++slot_->turn,
                               reinterpret_cast<std::uint32_t*>(slot_->arrivals.data())};
  auto* const blocks = reinterpret_cast<std::uint64_t*>(slot_->blocks.data());
  const int code = kernels::launch_digest(list, blocks, signal, slot_->stream.handle());
  if (code == 0) {
    under_way_ = true;
    asked_ = std::chrono::steady_clock::now();
  } else {
    static_cast<void>(slot_->stream.synchronize());  // the copy of the list
  }
  return cuda::check(code, fmt::format("hash {} bytes on CUDA device {}", total, digester_->device_));
}

bool Digester::Work::finished() {
  if (!under_way_) return true;
  const std::atomic_ref<std::uint32_t> word(*slot_->end());
  if (word.load(std::memory_order_acquire) == slot_->turn) {
    under_way_ = false;
    return true;
  }
  const auto now = std::chrono::steady_clock::now();
  if (now - asked_ < kLookAgainAfter) return false;
  asked_ = now;
  const auto idle = slot_->stream.idle();
  if (idle) return false;
  status_ = tl::unexpected(idle.error());
  under_way_ = false;
  return true;
}

Result<std::uint64_t> Digester::Work::value() const {
  if (!status_) return tl::unexpected(status_.error());
  return digest_of_blocks({reinterpret_cast<const std::uint64_t*>(slot_->blocks.data()), blocks_of(size_)},
                          size_);
}

Digester::Work::~Work() {
  const auto until = std::chrono::steady_clock::now() + kEndWithin;
  while (!finished() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  if (under_way_) {
    log(LogLevel::kError, "CUDA device {} still hashes after {} s; what it uses for that is left to it",
        digester_->device_, kEndWithin.count());
    static_cast<void>(slot_.release());
    return;
  }
  if (!status_) return;
  const MutexLock lock(digester_->mutex_);
  digester_->free_.push_back(std::move(slot_));
}

}  // namespace p2p::device
