// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/unique_fd.h"
#include "drivers/cuda/chunk.h"
#include "p2p/result.h"

namespace p2p::cuda {

/// Addresses of this process under which chunks of another one (or of its own, for a second device) lie side
/// by side, so that one copy goes across their borders. While they are mapped their memory stays taken,
/// whatever its owner does. Used by one thread at a time until it is full.
class Window {
 public:
  /// Reserves addresses for `size` bytes in all.
  static Result<Window> reserve(std::uint64_t size);

  Window() = default;
  Window(Window&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        mapped_(std::exchange(other.mapped_, 0)) {}
  Window& operator=(Window&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }

  /// Nothing may be copying any more: to unmap does not wait.
  ~Window();

  /// Maps the next chunk, which has to have exactly `size` bytes. The descriptor is not needed afterwards.
  Status add(const UniqueFd& exported, std::uint64_t size);

  /// The same with a chunk of this process.
  Status add(const Chunk& own);

  /// Lets copies and kernels of `device` use what is mapped by now, or what of it begins at byte `from`.
  Status allow(int device, std::uint64_t from = 0) const;

  bool full() const { return data_ != nullptr && mapped_ == size_; }
  std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }      ///< bytes
  std::uint64_t mapped() const { return mapped_; }  ///< of them

 private:
  Window(std::byte* data, std::uint64_t size) : data_(data), size_(size) {}
  Status map(unsigned long long handle, std::uint64_t size);

  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  std::uint64_t mapped_ = 0;  // bytes from the beginning
};

}  // namespace p2p::cuda
