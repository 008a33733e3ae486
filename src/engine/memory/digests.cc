// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/memory/digests.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "base/background.h"
#include "base/block_digest.h"
#include "base/error.h"
#include "base/guarded_copy.h"
#include "base/memory_guard.h"
#include "base/mutex.h"
#include "base/safe_copy.h"
#include "base/underlying.h"
#include "device/digester.h"
#include "drivers/cuda/memory.h"
#include "engine/memory/gpu_patience.h"

namespace p2p {
namespace {

using Range = engine::Digests::Range;

// What goes to the host at a time, of memory of several kinds.
constexpr std::size_t kFetched = std::size_t{1} << 20;

bool on_host(const Range& range) { return range.place.kind == MemoryKind::kHost; }

/// All of it is memory of one GPU.
bool on_one_gpu(std::span<const Range> ranges) {
  return !ranges.empty() && !on_host(ranges.front()) &&
         std::ranges::all_of(ranges, [&](const Range& one) { return one.place == ranges.front().place; });
}

Status add_of_gpu(BlockDigest& digest, std::span<const std::byte> bytes, std::vector<std::byte>& fetched) {
  fetched.resize(kFetched);
  while (!bytes.empty()) {
    const std::size_t size = std::min(bytes.size(), kFetched);
    if (auto copied = cuda::copy_now(fetched.data(), bytes.data(), size); !copied) return copied;
    digest.add(std::span(fetched).first(size));
    bytes = bytes.subspan(size);
  }
  return {};
}

Error bad(const Range& range) { return bad_memory("digest of", range.bytes.data(), range.bytes.size()); }

/// Of host memory and that of any GPUs, by this thread.
Result<std::uint64_t> digest_here(std::span<const Range> ranges, bool guarded) {
  BlockDigest digest;
  std::vector<std::byte> fetched;
  for (const Range& range : ranges) {
    Status added;
    if (!on_host(range)) {
      added = add_of_gpu(digest, range.bytes, fetched);
    } else if (guarded) {
      if (!digest.add_guarded(range.bytes)) added = tl::unexpected(bad(range));
    } else {
      digest.add(range.bytes);
    }
    if (!added) return tl::unexpected(std::move(added.error()));
  }
  return digest.value();
}

/// Host memory that several threads hash: each share of it begins with a block.
class Shares {
 public:
  explicit Shares(std::span<const Range> ranges) : ranges_(ranges) {
    begins_.reserve(ranges.size());
    for (const Range& range : ranges) {
      begins_.push_back(bytes_);
      bytes_ += range.bytes.size();
    }
    hashes_.resize((bytes_ + kDigestBlock - 1) / kDigestBlock);
  }

  std::size_t count() const { return (bytes_ + kShare - 1) / kShare; }

  /// Any thread; different ones at a time.
  void hash(std::size_t share) {
    guard_memory(
        "a digest", [&] { keep(hash_now(share)); },
        [&] { keep(fail(ErrorCode::kSystem, "digest: {}", kOutOfMemory)); });
  }

  /// Once all are hashed.
  Result<std::uint64_t> value() {
    const MutexLock lock(mutex_);
    if (!status_) return tl::unexpected(status_.error());
    return digest_of_blocks(hashes_, bytes_);
  }

 private:
  // Takes some 20 us: more than another thread takes to wake.
  static constexpr std::uint64_t kShare = std::uint64_t{256} << 10;
  static_assert(kShare % kDigestBlock == 0);

  void keep(Status status) {
    if (status) return;
    const MutexLock lock(mutex_);
    if (status_) status_ = std::move(status);
  }

  Status hash_now(std::size_t share) {
    const std::uint64_t begin = share * kShare, end = std::min(begin + kShare, bytes_);
    auto at = static_cast<std::size_t>(std::ranges::upper_bound(begins_, begin) - begins_.begin()) - 1;
    BlockDigest digest;
    for (std::uint64_t from = begin; from != end; ++at) {
      if (at + 1 != ranges_.size()) fetch_block(ranges_[at + 1].bytes.data(), ranges_[at + 1].bytes.size());
      const std::uint64_t skip = from - begins_[at];
      const std::uint64_t size = std::min(ranges_[at].bytes.size() - skip, end - from);
      if (!digest.add_guarded(ranges_[at].bytes.subspan(skip, size))) return tl::unexpected(bad(ranges_[at]));
      from += size;
    }
    std::ranges::copy(digest.blocks(), hashes_.begin() + static_cast<std::ptrdiff_t>(begin / kDigestBlock));
    return {};
  }

  const std::span<const Range> ranges_;
  std::vector<std::uint64_t> begins_;
  std::uint64_t bytes_ = 0;
  std::vector<std::uint64_t> hashes_;
  Mutex mutex_;
  Status status_ P2P_GUARDED_BY(mutex_);
};

std::vector<std::span<const std::byte>> bytes_of(std::span<const Range> ranges) {
  std::vector<std::span<const std::byte>> bytes;
  bytes.reserve(ranges.size());
  for (const Range& range : ranges) bytes.push_back(range.bytes);
  return bytes;
}

}  // namespace

class Digest::State {
 public:
  engine::HeldRegions regions;
  std::unique_ptr<device::Digester::Work> work;  // ends first; null: `value` is there
  Result<std::uint64_t> value{0};
};

std::uint64_t digest(std::span<const std::byte> bytes) {
  BlockDigest digest;
  digest.add(bytes);
  return digest.value();
}

Digest::Digest() = default;
Digest::Digest(std::unique_ptr<State> state) : state_(std::move(state)) {}
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;
Digest::~Digest() = default;

bool Digest::done() const { return !state_->work || state_->work->finished(); }

Result<std::uint64_t> Digest::wait(std::chrono::nanoseconds timeout) const {
  if (!state_->work) return state_->value;
  const auto start = std::chrono::steady_clock::now();
  while (!state_->work->finished()) {
    if (std::chrono::steady_clock::now() - start >= timeout) {
      return fail(ErrorCode::kTimedOut, "a digest of GPU memory was not there in {} ms",
                  std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count());
    }
    engine::wait_for_gpu(start);
  }
  return state_->work->value();
}

}  // namespace p2p

namespace p2p::engine {

Result<Digest> Digests::start(const RegionTable& regions, std::span<const LocalSpan> spans) {
  if (auto here = regions.check_process(); !here) return tl::unexpected(std::move(here.error()));
  auto state = std::make_unique<Digest::State>();
  std::vector<Range> ranges;
  std::shared_ptr<Region> region;
  for (const LocalSpan& span : spans) {
    if (!region || region->info().id != span.region) {
      region = regions.find(span.region);
      if (!region)
        return fail(ErrorCode::kNotFound, "digest: no local region {}", to_underlying(span.region));
      state->regions.add(region);
      if (!region->alive()) {
        return fail(ErrorCode::kNotFound, "digest: the memory of region {} was freed",
                    to_underlying(span.region));
      }
    }
    const RegionInfo& info = region->info();
    if (!info.contains(reinterpret_cast<std::uint64_t>(span.data), span.size)) {
      return fail(ErrorCode::kOutOfRange, "digest: {} bytes at {} do not lie in region {}, {} bytes at {}",
                  span.size, fmt::ptr(span.data), to_underlying(span.region), info.size, fmt::ptr(info.base));
    }
    if (span.size != 0) ranges.push_back({{span.data, span.size}, info.place});
  }
  if (on_one_gpu(ranges)) {
    auto work = digester(ranges.front().place.device)->start(bytes_of(ranges));
    if (!work) return tl::unexpected(std::move(work.error()));
    state->work = std::move(*work);
  } else {
    state->value = digest_here(ranges, false);
    if (!state->value) return tl::unexpected(state->value.error());
  }
  return Digest(std::move(state));
}

std::size_t digest_threads() { return std::clamp(std::thread::hardware_concurrency() / 2, 4U, 8U); }

Result<std::uint64_t> Digests::compute(std::span<const Range> ranges, Background* others) {
  look_after_guard();  // the program may have put handlers of its own in place since memory was registered
  if (others != nullptr && std::ranges::all_of(ranges, on_host)) {
    Shares shares(ranges);
    others->share(shares.count(), [&](std::size_t share) { shares.hash(share); });
    return shares.value();
  }
  if (!on_one_gpu(ranges)) return digest_here(ranges, true);
  auto work = digester(ranges.front().place.device)->start(bytes_of(ranges));
  if (!work) return tl::unexpected(std::move(work.error()));
  auto state = std::make_unique<Digest::State>();
  state->work = std::move(*work);
  return Digest(std::move(state)).wait(kGpuLimit);
}

bool digested_at_once(std::span<const Range> ranges) {
  std::uint64_t bytes = 0;
  for (const Range& range : ranges) bytes += range.bytes.size();
  return bytes <= kDigestedAtOnce && std::ranges::all_of(ranges, on_host);
}

std::shared_ptr<device::Digester> Digests::digester(int device) {
  const MutexLock lock(mutex_);
  auto& found = by_device_[device];
  if (!found) found = device::Digester::make(device);
  return found;
}

}  // namespace p2p::engine
