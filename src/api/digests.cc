// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "api/digests.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "base/block_digest.h"
#include "base/error.h"
#include "base/underlying.h"
#include "drivers/cuda/memory.h"

namespace p2p {
namespace {

using ReadRange = std::span<const std::byte>;

// Between looks at a GPU, which tells nobody that it is through.
constexpr std::chrono::microseconds kLookEvery{20};

// What goes to the host at a time, of memory of several kinds.
constexpr std::size_t kFetched = std::size_t{1} << 20;

/// Of host memory and that of any GPUs, by this thread.
Result<std::uint64_t> digest_here(std::span<const ReadRange> ranges, const std::vector<bool>& on_host) {
  BlockDigest digest;
  std::vector<std::byte> fetched;
  for (std::size_t at = 0; at < ranges.size(); ++at) {
    if (on_host[at]) {
      digest.add(ranges[at]);
      continue;
    }
    fetched.resize(kFetched);
    for (ReadRange rest = ranges[at]; !rest.empty();) {
      const std::size_t size = std::min(rest.size(), kFetched);
      if (auto copied = cuda::copy_now(fetched.data(), rest.data(), size); !copied) {
        return tl::unexpected(std::move(copied.error()));
      }
      digest.add(std::span(fetched).first(size));
      rest = rest.subspan(size);
    }
  }
  return digest.value();
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
    std::this_thread::sleep_for(kLookEvery);
  }
  return state_->work->value();
}

Result<Digest> Digests::start(const engine::RegionTable& regions, std::span<const LocalSpan> spans) {
  if (auto here = regions.check_process(); !here) return tl::unexpected(std::move(here.error()));
  auto state = std::make_unique<Digest::State>();
  std::vector<ReadRange> ranges;
  std::vector<bool> on_host;
  MemoryPlace place;
  bool mixed = false;
  std::shared_ptr<engine::Region> region;
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
    if (span.size == 0) continue;
    mixed |= !ranges.empty() && info.place != place;
    place = info.place;
    ranges.emplace_back(span.data, span.size);
    on_host.push_back(place.kind == MemoryKind::kHost);
  }
  if (mixed || place.kind == MemoryKind::kHost) {
    state->value = digest_here(ranges, on_host);
    if (!state->value) return tl::unexpected(state->value.error());
  } else {
    auto work = digester(place.device)->start(ranges);
    if (!work) return tl::unexpected(std::move(work.error()));
    state->work = std::move(*work);
  }
  return Digest(std::move(state));
}

std::shared_ptr<device::Digester> Digests::digester(int device) {
  const MutexLock lock(mutex_);
  auto& found = by_device_[device];
  if (!found) found = device::Digester::make(device);
  return found;
}

}  // namespace p2p
