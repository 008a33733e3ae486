// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/standby.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/error.h"

namespace p2p::device {
namespace {

using kernels::kOrders;
using kernels::Order;

constexpr std::size_t kOrderBytes = kOrders * sizeof(Order);
constexpr std::size_t kBoardBytes = kOrderBytes + 64;

// Far above kLife, after which nothing is ordered any more: for a process that is stopped in a debugger.
constexpr std::chrono::nanoseconds kKernelLife = std::chrono::milliseconds(100);
constexpr std::chrono::seconds kLeaveWithin{5};
// Of the time after which nothing is ordered any more: who gave the last order in time may be held up on his
// way.
constexpr int kIdleTimes = 2;

}  // namespace

Result<std::unique_ptr<Standby>> Standby::open(int device, const Limits& limits) {
  std::unique_ptr<Standby> standby(new Standby(device, limits));
  const cuda::DeviceGuard guard(device);
  if (!guard.status()) return tl::unexpected(guard.status().error());
  auto board = cuda::HostBuffer::allocate(kBoardBytes);
  if (!board) return tl::unexpected(std::move(board.error()));
  auto scratch = cuda::DeviceBuffer::allocate(device, kOrderBytes + kOrders * sizeof(std::uint32_t), true);
  if (!scratch) return tl::unexpected(std::move(scratch.error()));
  auto stream = cuda::Stream::open(device, cuda::Stream::Priority::kHigh);
  if (!stream) return tl::unexpected(std::move(stream.error()));
  standby->board_ = std::move(*board);
  standby->scratch_ = std::move(*scratch);
  standby->stream_ = std::move(*stream);
  std::memset(standby->board_.data(), 0, kBoardBytes);
  return standby;
}

Standby::~Standby() {
  if (!stream_) return;
  dismiss();
  const auto deadline = Clock::now() + kLeaveWithin;
  while (Clock::now() < deadline) {
    const auto idle = stream_.idle();
    if (!idle || *idle) return;
  }
  log(LogLevel::kError, "CUDA device {}: the kernel for short copies does not end", device_);
}

// A kernel that ended before its time, because this process stood still for long, leaves orders behind. The
// next one begins with a later number, which would make them look done: there is none until they are settled.
std::optional<Standby::Number> Standby::order(const kernels::CopyBlock& block, Clock::time_point now) {
  const MutexLock lock(mutex_);
  const bool soon = now - asked_ < limits_.idle;
  asked_ = now;
  note_done();
  // Room is kept for an order to stop.
  if (next_ - oldest_ >= kOrders - 2) return std::nullopt;
  if (running_ && (!soon || now - launched_ >= kLife)) stop();
  if (!running_) {
    if (soon && !broken_ && under_way_ == 0) broken_ = !launch(now);
    return std::nullopt;
  }
  const auto source = reinterpret_cast<std::uint64_t>(block.source);
  const auto target = reinterpret_cast<std::uint64_t>(block.target);
  const bool fits = source <= kernels::kFieldMask && target <= kernels::kFieldMask;
  if (!fits || block.bytes == 0 || block.bytes > kMostBytes || !is_done(hello_)) return std::nullopt;
  ++under_way_;
  return put(block);
}

// Each word tells by itself that it has come, so that they may come in any order.
Standby::Number Standby::put(const kernels::CopyBlock& block) {
  const Number number = next_++;
  auto& order = reinterpret_cast<Order*>(board_.data())[number % kOrders];
  const auto store = [number](std::uint64_t& word, std::uint64_t field) {
    std::atomic_ref(word).store(kernels::tagged(field, number), std::memory_order_release);
  };
  store(order.source, reinterpret_cast<std::uint64_t>(block.source));
  store(order.target, reinterpret_cast<std::uint64_t>(block.target));
  store(order.bytes, block.bytes);
  store(order.unused, 0);
  return number;
}

void Standby::stop() {
  put({});
  running_ = false;
}

// The one before it may still be on its way to its end: it comes first in the stream.
bool Standby::launch(Clock::time_point now) {
  const cuda::DeviceGuard guard(device_);
  if (!guard.status()) return false;
  hello_ = next_++;
  const kernels::StandbyBoard board{
      .orders = reinterpret_cast<const Order*>(board_.data()),
      .relay = reinterpret_cast<Order*>(scratch_.data()),
      .done = reinterpret_cast<std::uint32_t*>(board_.data() + kOrderBytes),
      .arrivals = reinterpret_cast<std::uint32_t*>(scratch_.data() + kOrderBytes),
      .first = hello_,
      .life_ns = static_cast<std::uint64_t>(kKernelLife.count()),
      .idle_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(kIdleTimes * limits_.idle).count())};
  const int code = kernels::launch_standby(board, limits_.ctas, stream_.handle());
  if (code != 0) {
    const Error error = cuda::error_of(code, fmt::format("keep a kernel ready on CUDA device {}", device_));
    log(LogLevel::kWarning, "short copies go by copy engine: {}", error.message);
    return false;
  }
  launched_ = now;
  running_ = true;
  return true;
}

Standby::Number Standby::last_done() {
  auto& word = *reinterpret_cast<std::uint32_t*>(board_.data() + kOrderBytes);
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

// An order done means that all before it are.
bool Standby::is_done(Number number) { return static_cast<std::int32_t>(last_done() - number) >= 0; }

void Standby::note_done() {
  const Number after = last_done() + 1;
  if (static_cast<std::int32_t>(after - oldest_) > 0) oldest_ = after;
}

bool Standby::finished(Number number) {
  if (!is_done(number)) return false;
  const MutexLock lock(mutex_);
  --under_way_;
  return true;
}

Result<bool> Standby::lost(Number number) {
  const auto idle = stream_.idle();
  const MutexLock lock(mutex_);
  if (!idle) {
    broken_ = true;
    running_ = false;
    return tl::unexpected(idle.error());
  }
  if (!*idle) return false;
  running_ = false;
  if (is_done(number)) return false;
  --under_way_;
  return true;
}

void Standby::rehearse() {
  const MutexLock lock(mutex_);
  if (running_ || broken_) return;
  broken_ = !launch(Clock::now());
  if (running_) stop();
}

void Standby::dismiss() {
  const MutexLock lock(mutex_);
  if (running_) stop();
}

bool Standby::running() const {
  const MutexLock lock(mutex_);
  return running_;
}

}  // namespace p2p::device
