// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What the engine's kernels do, on the processor: src/kernels/copy.cu, with one thread in place of many.
#include "kernels.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/digest.h"
#include "kernels/launch.h"
#include "kernels/standby.h"
#include "memory.h"

namespace p2p::kernels {
namespace {

constexpr char kTags[5] = {};  // an address for each kernel

}  // namespace

[[gnu::visibility("default")]] int find_kernel(Kernel which, const void*& found) {
  found = &kTags[static_cast<std::size_t>(which)];
  return 0;
}

}  // namespace p2p::kernels

namespace softgpu {
namespace {

using p2p::kernels::CopyBlock;
using p2p::kernels::Kernel;
using p2p::kernels::Order;
using p2p::kernels::Signal;
using p2p::kernels::StandbyBoard;
using Clock = std::chrono::steady_clock;

template <class Pointer>
std::uintptr_t number(Pointer* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

bool copy_blocks(const std::vector<CopyBlock>& blocks) {
  bool right = true;
  for (const CopyBlock& block : blocks)
    right &= copy_by_kernel(number(block.target), number(block.source), block.bytes);
  return right;
}

bool copy_rows(const p2p::kernels::CopyRows& all) {
  bool right = true;
  for (std::uint64_t row = 0; row != all.rows; ++row) {
    for (std::uint64_t i = 0; i != all.count; ++i) {
      right &= copy_by_kernel(number(all.first.target) + row * all.target_row + i * all.target_stride,
                              number(all.first.source) + row * all.source_row + i * all.source_stride,
                              all.first.bytes);
    }
  }
  return right;
}

void tell(std::uint32_t* word, std::uint32_t value) {
  if (word != nullptr) std::atomic_ref(*word).store(value, std::memory_order_release);
}

/// The words of an order once all of them have come; none when the time is up.
bool wait_for_order(const Order& place, std::uint32_t which, Clock::time_point until, Order& order) {
  const std::uint64_t tag = p2p::kernels::tagged(0, which);
  const auto come = [tag](const std::uint64_t& word, std::uint64_t& field) {
    const std::uint64_t value =
        std::atomic_ref(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire);
    field = value & p2p::kernels::kFieldMask;
    return (value & ~p2p::kernels::kFieldMask) == tag;
  };
  while (!(come(place.source, order.source) && come(place.target, order.target) &&
           come(place.bytes, order.bytes) && come(place.unused, order.unused))) {
    if (Clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

bool stand_by(const StandbyBoard& board) {
  const auto end = Clock::now() + std::chrono::nanoseconds(board.life_ns);
  tell(board.done, board.first);
  for (std::uint32_t which = board.first + 1;; ++which) {
    const auto idle = Clock::now() + std::chrono::nanoseconds(board.idle_ns);
    Order order;
    if (!wait_for_order(board.orders[which % p2p::kernels::kOrders], which, std::min(idle, end), order))
      return true;
    if (order.bytes == 0) return true;
    if (!copy_by_kernel(order.target, order.source, order.bytes)) return false;
    tell(board.done, which);
  }
}

/// The run's part of the bytes from `begin` on, as many as `into` has.
bool read_run(const p2p::kernels::DigestRun& run, std::uint64_t run_end, std::uint64_t begin,
              std::vector<std::byte>& into) {
  const std::uint64_t from = std::max(begin, run.begin), to = std::min(begin + into.size(), run_end);
  if (from >= to) return true;
  return copy(number(into.data()) + (from - begin), number(run.data) + (from - run.begin), to - from);
}

bool digest(const std::vector<p2p::kernels::DigestRun>& runs, std::uint64_t total, std::uint64_t* blocks) {
  using p2p::kernels::kHashedBlock;
  std::size_t first = 0;
  for (std::uint64_t begin = 0; begin < total; begin += kHashedBlock) {
    std::vector<std::byte> block(kHashedBlock);
    const auto end_of = [&](std::size_t at) { return at + 1 < runs.size() ? runs[at + 1].begin : total; };
    while (end_of(first) <= begin) ++first;
    for (std::size_t at = first; at < runs.size() && runs[at].begin < begin + block.size(); ++at) {
      if (!read_run(runs[at], end_of(at), begin, block)) return false;
    }
    blocks[begin / kHashedBlock] = XXH3_64bits(block.data(), block.size());
  }
  return true;
}

/// Where the kernel reads them: on the device, or in pinned memory.
template <class Row>
std::vector<Row> read_list(const Row* list, std::uint64_t count) {
  std::vector<Row> read(count);
  if (!copy(number(read.data()), number(list), count * sizeof(Row))) read.clear();
  return read;
}

template <class Argument>
Argument argument(void** arguments, int index) {
  return *static_cast<const Argument*>(arguments[index]);
}

}  // namespace

void launch_digest(void** arguments, Stream& stream) {
  using p2p::kernels::DigestRun;
  const auto list = argument<p2p::kernels::DigestList>(arguments, 1);
  std::vector<DigestRun> inlined;
  if (list.runs == nullptr) {
    const auto* const runs = static_cast<const p2p::kernels::InlineRuns*>(arguments[0])->runs;
    inlined.assign(runs, runs + list.count);
  }
  stream.add([list, inlined, blocks = argument<std::uint64_t*>(arguments, 2),
              signal = argument<Signal>(arguments, 3)] {
    const std::vector<DigestRun> runs = list.runs == nullptr ? inlined : read_list(list.runs, list.count);
    const bool right = runs.size() == list.count && digest(runs, list.total, blocks);
    if (right) tell(signal.word, signal.value);
    return right;
  });
}

void launch(const void* kernel, unsigned /*ctas*/, void** arguments, Stream& stream) {
  const auto is = [kernel](Kernel which) {
    const void* one = nullptr;
    p2p::kernels::find_kernel(which, one);
    return one == kernel;
  };
  if (is(Kernel::kStandBy)) {
    stream.add([board = argument<StandbyBoard>(arguments, 0)] { return stand_by(board); });
    return;
  }
  if (is(Kernel::kDigest)) return launch_digest(arguments, stream);
  if (is(Kernel::kCopyRows)) {
    stream.add(
        [all = argument<p2p::kernels::CopyRows>(arguments, 0), signal = argument<Signal>(arguments, 2)] {
          const bool right = copy_rows(all);
          if (right) tell(signal.word, signal.value);
          return right;
        });
    return;
  }
  const auto count = argument<std::uint64_t>(arguments, 1);
  const auto signal = argument<Signal>(arguments, 3);
  if (is(Kernel::kCopyInline)) {
    const auto* const list = static_cast<const p2p::kernels::InlineBlocks*>(arguments[0])->blocks;
    stream.add([blocks = std::vector<CopyBlock>(list, list + count), signal] {
      const bool right = copy_blocks(blocks);
      if (right) tell(signal.word, signal.value);
      return right;
    });
    return;
  }
  stream.add([blocks = argument<const CopyBlock*>(arguments, 0), count, signal] {
    const std::vector<CopyBlock> list = read_list(blocks, count);
    const bool right = list.size() == count && copy_blocks(list);
    if (right) tell(signal.word, signal.value);
    return right;
  });
}

}  // namespace softgpu
