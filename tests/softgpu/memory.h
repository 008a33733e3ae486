// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace softgpu {

using Uuid = std::array<char, 16>;

/// What stands for memory of a GPU: a memfd, so that other processes can have it, and a mapping of it through
/// which copies go. The addresses that the program sees are others, which the processor cannot touch.
class Physical {
 public:
  /// Null if the system has no memory.
  static std::shared_ptr<Physical> make(int device, std::size_t size, bool exportable);

  /// Takes the descriptor. Null if it is none of these, or of a GPU that is not there (`hidden`).
  static std::shared_ptr<Physical> import(int fd, bool& hidden);

  /// Makes a memfd of another use such memory, for which it grows by a page. Takes the descriptor.
  static std::shared_ptr<Physical> adopt(int fd, int device, std::size_t size, bool exportable);

  /// Of all that some process of this machine still has.
  static std::size_t bytes();

  ~Physical();
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;

  int fd() const { return fd_; }
  int device() const { return device_; }
  std::size_t size() const { return size_; }
  std::byte* data() const { return data_; }
  bool exportable() const { return exportable_; }
  std::uint64_t id() const { return id_; }  ///< of this object, never again

 private:
  Physical() = default;
  bool map();

  int fd_ = -1;
  int device_ = 0;
  std::size_t size_ = 0;
  std::byte* data_ = nullptr;
  bool exportable_ = false;
  std::uint64_t id_ = 0;
};

/// Addresses that the driver knows.
struct Range {
  enum class Kind { kMalloc, kPool, kMapped, kImported, kPinned, kManaged };

  Kind kind = Kind::kMalloc;
  std::uintptr_t base = 0;
  std::size_t size = 0;
  std::shared_ptr<Physical> physical;  ///< null: pinned host memory, managed memory
  std::uint64_t id = 0;                ///< never again
  bool reachable = true;               ///< false: mapped, and nobody was given access

  bool contains(std::uintptr_t address) const { return address >= base && address - base < size; }
};

/// All ranges of the process. Thread-safe.
class Addresses {
 public:
  static Addresses& of_process();

  /// Addresses for `size` bytes that the processor cannot touch; 0: there are none.
  std::uintptr_t reserve(std::size_t size);
  void give_back(std::uintptr_t base);

  void add(Range range);
  bool remove(std::uintptr_t base);
  std::optional<Range> find(std::uintptr_t address);

  /// Whole ranges within these addresses; what `change` returns false for is removed.
  template <class Change>
  void each_within(std::uintptr_t base, std::size_t size, const Change& change) {
    const std::lock_guard lock(mutex_);
    for (auto at = ranges_.lower_bound(base); at != ranges_.end() && at->first < base + size;) {
      at = change(at->second) ? std::next(at) : ranges_.erase(at);
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::uintptr_t, Range> ranges_;
  std::map<std::uintptr_t, std::size_t> reserved_;
  std::uint64_t last_id_ = 0;
};

/// Bytes that lie side by side for the processor, and what keeps them there meanwhile.
struct Piece {
  std::byte* data = nullptr;
  std::size_t size = 0;
  std::shared_ptr<Physical> keeper;
};

/// The first of `size` bytes from `address` on: a device's, or else the program's own memory. Size 0: nothing
/// is there, as after an illegal access.
Piece piece_at(std::uintptr_t address, std::size_t size);

/// True if all of them are, or the program's own memory, of which nothing is known.
bool are_there(std::uintptr_t address, std::size_t size);

/// As a copy engine does. False: illegal access.
bool copy(std::uintptr_t target, std::uintptr_t source, std::size_t size);

/// Bytes of `value`. False: illegal access.
bool set(std::uintptr_t target, unsigned char value, std::size_t size);

/// As a kernel does: of the program's memory it reaches what is pinned or managed alone.
bool copy_by_kernel(std::uintptr_t target, std::uintptr_t source, std::size_t size);

}  // namespace softgpu
