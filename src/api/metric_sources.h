// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "base/rate_limited_log.h"
#include "p2p/added_metrics.h"
#include "p2p/result.h"

namespace p2p {

/// What a program's function has said, as far as it may stand on a page.
struct AddedSamples {
  std::shared_ptr<const std::vector<MetricFamily>> families;
  std::vector<MetricSample> samples;
};

/// Metrics that a program has added, and the function that says their values. It is called on a thread of its
/// own, so that one that never returns holds up nobody but who waits for it. Thread-safe.
class MetricSource : public std::enable_shared_from_this<MetricSource> {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::size_t kMostFamilies = 64;
  static constexpr std::size_t kMostLabels = 16;
  static constexpr std::size_t kMostSamples = 4096;
  static constexpr std::size_t kMostLabelBytes = std::size_t{1} << 20;  // of one page, together

  /// kInvalidArgument: names that are no metric's or label's, or the engine's own.
  static Result<std::shared_ptr<MetricSource>> make(std::vector<MetricFamily> families,
                                                    MetricFunction function);

  ~MetricSource();
  MetricSource(const MetricSource&) = delete;
  MetricSource& operator=(const MetricSource&) = delete;

  /// Calls the function, unless a call is under way.
  void ask();
  /// What it has said; nothing if it is late, or has ended.
  AddedSamples answer(Clock::time_point deadline);
  void end();

 private:
  MetricSource(std::vector<MetricFamily> families, MetricFunction function);
  void run();
  std::vector<MetricSample> checked(std::vector<MetricSample> said);

  const Birthplace birthplace_;
  const std::shared_ptr<const std::vector<MetricFamily>> families_;
  RateLimitedLog odd_{LogLevel::kWarning};
  RateLimitedLog late_{LogLevel::kWarning};
  Mutex mutex_;
  std::condition_variable_any ended_;  // a call
  MetricFunction function_;            // of the thread that calls, while `running_`
  std::thread thread_ P2P_GUARDED_BY(mutex_);
  bool running_ P2P_GUARDED_BY(mutex_) = false;
  bool over_ P2P_GUARDED_BY(mutex_) = false;
  std::vector<MetricSample> said_ P2P_GUARDED_BY(mutex_);
};

/// Those of one endpoint. Thread-safe.
class MetricSources {
 public:
  /// What functions have for their answers, of all endpoints of a page together.
  static constexpr std::chrono::milliseconds kPatience{500};

  void add(const std::shared_ptr<MetricSource>& source);
  /// Those that have not ended. Their functions are called.
  std::vector<std::shared_ptr<MetricSource>> asked();

 private:
  Mutex mutex_;
  std::vector<std::weak_ptr<MetricSource>> all_ P2P_GUARDED_BY(mutex_);
};

/// The answers of sources that were asked.
std::vector<AddedSamples> answers_of(const std::vector<std::shared_ptr<MetricSource>>& asked,
                                     MetricSource::Clock::time_point deadline);

}  // namespace p2p
