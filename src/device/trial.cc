// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/trial.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"

namespace p2p::device {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::array<std::uint64_t, 3> kListSizes{4 * kMiB, 16 * kMiB, kTrialBytes};
constexpr std::array<std::uint64_t, 4> kSingleSizes{kLeastTrialBytes, 2 * kMiB, 4 * kMiB, 8 * kMiB};
constexpr std::size_t kPieces = 4;  // of a list
constexpr int kRounds = 3;          // of which the quickest counts
constexpr int kAttempts = 100;      // until the kernel stands by, at some 10 us each
constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();
constexpr std::chrono::milliseconds kEndWithin{50};  // one list, on a GPU that has other work

constexpr Ways kByEngine{.bulk_bytes = 0, .standby_bytes = 0};
constexpr Ways kByKernel{.bulk_bytes = kAny, .standby_bytes = 0};
constexpr Ways kByStandby{.bulk_bytes = kAny, .standby_bytes = kAny};

class Trial {
 public:
  Trial(Copier& copier, const kernels::CopyBlock& most, Clock::time_point deadline,
        const std::function<bool()>& undisturbed)
      : copier_(copier), most_(most), deadline_(deadline), undisturbed_(undisturbed) {}

  Result<Timings> run() {
    Timings timings;
    for (const std::uint64_t size : kSingleSizes) {
      if (const Status tried = add(timings.singles, size, 1, kByStandby); !tried) {
        return tl::unexpected(tried.error());
      }
      if (timings.singles.empty()) break;  // no kernel stands by
    }
    for (const std::uint64_t size : kListSizes) {
      if (const Status tried = add(timings.lists, size, kPieces, kByKernel); !tried) {
        return tl::unexpected(tried.error());
      }
    }
    return timings;
  }

 private:
  struct Took {
    double us = 0;
    bool stood_by = false;
  };

  bool over() const { return Clock::now() >= deadline_; }

  // Leaves the size out if time or memory do not suffice, or no kernel stands by.
  Status add(std::vector<Timing>& timings, std::uint64_t size, std::size_t pieces, const Ways& kernel) {
    if (size > most_.bytes) return {};
    const auto by_engine = quickest(size, pieces, kByEngine);
    if (!by_engine) return tl::unexpected(by_engine.error());
    const auto by_kernel = quickest(size, pieces, kernel);
    if (!by_kernel) return tl::unexpected(by_kernel.error());
    if (*by_engine > 0 && *by_kernel > 0) timings.push_back({size, *by_engine, *by_kernel});
    return {};
  }

  /// Microseconds; 0 if it did not come to it.
  Result<double> quickest(std::uint64_t size, std::size_t pieces, const Ways& ways) {
    const bool standby = ways.standby_bytes != 0;
    double least = 0;
    int rounds = 0;
    for (int attempt = 0; attempt < kAttempts && rounds < kRounds; ++attempt) {
      if (over()) return 0.0;
      if (!undisturbed_()) return fail(ErrorCode::kCancelled, "try copies: there is other work");
      const auto took = once(size, pieces, ways);
      if (!took) return tl::unexpected(took.error());
      if (standby && !took->stood_by) continue;
      ++rounds;
      least = rounds == 1 ? took->us : std::min(least, took->us);
    }
    return rounds == kRounds ? least : 0.0;
  }

  Result<Took> once(std::uint64_t size, std::size_t pieces, const Ways& ways) {
    Copier::List* const list = copier_.take();
    if (list == nullptr) return fail(ErrorCode::kUnavailable, "try copies: no list is free");
    // The same bytes again and again: what counts is the way between the devices.
    for (std::size_t i = 0; i < pieces; ++i) copier_.add(*list, {most_.source, most_.target, size}, ways);
    const auto start = Clock::now();
    copier_.start(*list);
    while (!copier_.finished(*list)) {
      if (Clock::now() - start > kEndWithin)
        return fail(ErrorCode::kTimedOut, "try copies: one does not end");
    }
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    const Status status = list->status();
    const bool stood_by = list->stood_by();
    copier_.give_back(*list);
    if (!status) return tl::unexpected(status.error());
    return Took{took.count(), stood_by};
  }

  Copier& copier_;
  const kernels::CopyBlock most_;
  const Clock::time_point deadline_;
  const std::function<bool()>& undisturbed_;
};

}  // namespace

Result<Timings> try_ways(Copier& copier, const kernels::CopyBlock& most, std::chrono::nanoseconds time,
                         const std::function<bool()>& undisturbed) {
  const kernels::CopyBlock bounded{most.source, most.target, std::min(most.bytes, kTrialBytes)};
  auto timings = Trial(copier, bounded, Clock::now() + time, undisturbed).run();
  copier.dismiss();
  return timings;
}

}  // namespace p2p::device
