// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "device/standby.h"
#include "drivers/cuda/mark.h"
#include "drivers/cuda/memory.h"
#include "drivers/cuda/stream.h"
#include "kernels/copy.h"
#include "p2p/result.h"

namespace p2p::device {

/// Which way a piece goes.
struct Ways {
  std::uint64_t bulk_bytes = 0;     ///< of at least this size by copy engine; 0: all do
  std::uint64_t standby_bytes = 0;  ///< a single one of at most this size by the kernel that stands by
};

/// Copier::Limits::bulk_bytes if kernels may have so many thread blocks: pieces of any size go by kernel, or
/// none.
constexpr std::uint64_t all_by_kernel(unsigned ctas) {
  return ctas == 0 ? 0 : std::numeric_limits<std::uint64_t>::max();
}

/// Runs lists of copies on one device for one channel. Everything it needs is made when it is opened, and
/// every kernel and stream used once, because CUDA puts off work of its own to the first use; later it
/// neither allocates device or pinned memory nor synchronises. Used by one thread at a time.
class Copier {
 public:
  struct Limits {
    kernels::Grid grid;
    std::uint64_t bulk_bytes = 0;  ///< pieces of at least this size go by copy engine; 0: all do
    std::size_t bulk_count = 0;    ///< and lists of at most so many pieces
    std::size_t blocks = 0;        ///< of one list
    std::size_t lists = 0;         ///< under way at once
    unsigned standby_ctas = 0;     ///< of the kernel that waits for short single pieces; 0: none
    std::uint64_t standby_bytes = std::uint64_t{4} << 20;  ///< which are at most this long
  };

  /// One list, between `take` and `give_back`.
  class List {
   public:
    /// How it ended, once finished.
    const Status& status() const { return status_; }

   private:
    friend class Copier;
    std::size_t slot_ = 0;
    std::size_t stream_ = 0;  // of two
    kernels::CopyList blocks_;
    std::vector<kernels::CopyBlock> bulk_;
    std::vector<kernels::CopyRows> rows_;
    std::uint32_t turn_ = 0;
    std::array<bool, 2> waits_{};  // for the kernel's word, for the copy engine's word
    std::uint64_t standby_bytes_ = 0;
    std::optional<Standby::Number> order_;
    std::chrono::steady_clock::time_point asked_;
    Status status_;
  };

  /// `standby`: one that others use as well, in place of its own.
  static Result<std::unique_ptr<Copier>> open(int device, const Limits& limits,
                                              std::shared_ptr<Standby> standby = nullptr);

  /// Settles. The memory of what is under way even then is never freed.
  ~Copier();

  /// Waits until nothing is under way, once and for a few seconds at most; false if something still is.
  bool settle();

  int device() const { return device_; }

  /// All lists were given back.
  bool unused() const { return free_.size() == lists_.size(); }

  /// Bytes that `rehearse` copies at most.
  static constexpr std::size_t kRehearsed = 4096;

  /// Starts copies from `source`, and to `target` where there is one, of `bytes` each that nobody will miss:
  /// what comes is thrown away, what goes is zeros. For first uses of somebody else's memory. Does not wait.
  Status rehearse(const std::byte* source, std::byte* target, std::size_t bytes);

  /// True if nothing runs on the device for it, or the device has failed. Asks the driver: not for the data
  /// path.
  bool quiet() const;

  /// Behind what its streams have to do now.
  Result<std::vector<cuda::StreamMark>> marks() const;

  /// Nothing is under way, nor will be by a kernel that stands by. Never blocks.
  bool at_rest();

  /// An empty list, or null while all are in use.
  List* take();

  /// At most Limits::blocks a list.
  void add(List& list, const kernels::CopyBlock& block, const Ways& ways) const {
    list.standby_bytes_ = ways.standby_bytes;
    if (block.bytes >= ways.bulk_bytes) {
      list.bulk_.push_back(block);
      return;
    }
    *room(list) = block;
    added(list, {nullptr, 1, block.bytes, block.bytes});
  }

  /// Where the next blocks of a list for a kernel may be written, up to Limits::blocks of it in all; then
  /// `added` tells of them.
  kernels::CopyBlock* room(const List& list) const { return blocks_of(list.slot_) + list.blocks_.count; }
  static void added(List& list, const kernels::CopyList& more) {
    list.blocks_.count += more.count;
    list.blocks_.total += more.total;
    list.blocks_.largest = std::max(list.blocks_.largest, more.largest);
  }

  /// Rows of blocks go by kernel, however long they are: one launch each.
  static void add_rows(List& list, const kernels::CopyRows& rows) { list.rows_.push_back(rows); }

  /// The limits' ways, but single pieces of at most so much by the kernel that stands by.
  Ways ways(std::uint64_t standby_bytes) const { return {limits_.bulk_bytes, standby_bytes}; }

  /// By which way the limits say; kernels reach both ends.
  void add(List& list, const kernels::CopyBlock& block) const {
    add(list, block, ways(limits_.standby_bytes));
  }

  /// Starts it. Errors are the list's status.
  void start(List& list);

  /// Never blocks. The driver is asked only when a list takes long, to find out whether it failed.
  bool finished(List& list);

  void give_back(List& list);

  /// Ends what is kept ready.
  void dismiss() {
    if (standby_) standby_->dismiss();
  }

 private:
  Copier(int device, const Limits& limits) : device_(device), limits_(limits) {}

  kernels::CopyBlock* blocks_of(std::size_t slot) const {
    return reinterpret_cast<kernels::CopyBlock*>(blocks_.data()) + slot * limits_.blocks;
  }
  Status allocate();
  Status rehearse_all();
  kernels::CopyBlock* empty_blocks() const { return blocks_of(limits_.lists); }
  std::byte* scratch_of_host() const { return words_.data() + limits_.lists * 2 * kLine; }
  std::byte* scratch_of_device() const { return arrivals_.data() + limits_.lists * kLine; }
  std::uint32_t* word_of(const List& list, std::size_t which) const;
  void choose_engine(List& list) const;
  const cuda::Stream& stream_of(const List& list, std::size_t which) const;
  bool order(List& list);
  void launch(List& list);
  void start_kernel(List& list);
  void start_bulk(List& list);
  bool ended_by_error(List& list);
  bool order_ended(List& list);

  static constexpr std::size_t kLine = 64;

  const int device_;
  const Limits limits_;
  std::optional<std::chrono::steady_clock::time_point> settle_by_;
  cuda::HostBuffer blocks_;      // of all lists, then empty ones
  cuda::HostBuffer words_;       // two lines a list, then one for rehearsals
  cuda::DeviceBuffer arrivals_;  // a line a list, then kRehearsed zeros, then what rehearsals fetched
  std::vector<List> lists_;
  std::vector<List*> free_;
  std::array<cuda::Stream, 2> kernels_;  // two, so that one list starts while the one before drains
  std::array<cuda::Stream, 2> bulk_;
  std::shared_ptr<Standby> standby_;
};

}  // namespace p2p::device
