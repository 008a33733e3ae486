// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "p2p/result.h"

namespace p2p::cuda {

/// Owns a stream that does not wait for the legacy default stream. Used by one thread at a time. `copy`
/// and `signal` need its device to be current (DeviceGuard), so that a list of them pays once.
class Stream {
 public:
  enum class Priority : std::uint8_t { kNormal, kHigh };

  static Result<Stream> open(int device, Priority priority);

  Stream() = default;
  Stream(Stream&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), device_(std::exchange(other.device_, -1)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(device_, other.device_);
    return *this;
  }
  /// Work under way goes on.
  ~Stream();

  void* handle() const { return handle_; }  ///< cudaStream_t
  int device() const { return device_; }
  explicit operator bool() const { return handle_ != nullptr; }

  /// Copies by copy engine, in the order of the stream. Host memory is to be pinned.
  Status copy(void* target, const void* source, std::size_t bytes) const;

  /// Writes `value` to a word of pinned host memory once all work so far is done and visible to the host.
  Status signal(std::uint32_t* word, std::uint32_t value) const;

  /// True if nothing is under way; the error if some work failed.
  Result<bool> idle() const;

  /// Waits for all work so far. For set-up, tests and closing, not for the data path.
  Status synchronize() const;

 private:
  Stream(void* handle, int device) : handle_(handle), device_(device) {}
  void* handle_ = nullptr;
  int device_ = -1;
};

}  // namespace p2p::cuda
