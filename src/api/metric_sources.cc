// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "api/metric_sources.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "api/metrics_text.h"
#include "base/callback.h"
#include "base/error.h"
#include "base/peer_text.h"
#include "base/thread.h"

namespace p2p {
namespace {

constexpr std::size_t kLongestName = 128;
constexpr std::size_t kLongestText = 256;

// What the page appends to names of its own, so no name of a program may end with it.
constexpr std::string_view kEndings[] = {"_total", "_created", "_bucket", "_sum", "_count", "_info"};
// Labels with a meaning: the first two are added to each series, the others are those of histograms.
constexpr std::string_view kLabels[] = {"endpoint", "process", "le", "quantile"};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kLongestName && is_letter(text[0]) && !text.starts_with("__") &&
         std::ranges::all_of(text, [](char c) { return is_letter(c) || is_digit(c); });
}

bool is_help(std::string_view text) {
  return !text.empty() && text.size() <= kLongestText &&
         std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
}

Status check(const MetricFamily& family) {
  const auto refuse = [&](std::string_view why) {
    return fail(ErrorCode::kInvalidArgument, "the metric '{}' cannot be added: {}",
                PeerText(family.name, kLongestName), why);
  };
  if (!is_name(family.name)) return refuse("its name is not of up to 128 letters, digits and _");
  for (const std::string_view ending : kEndings) {
    if (family.name.ends_with(ending)) return refuse(fmt::format("{} at the end has a meaning", ending));
  }
  if (is_engine_metric(family.name)) return refuse("the engine has one of that name");
  if (!is_help(family.help)) {
    return refuse("its help is not of 1 to 256 printable characters without quotes and backslashes");
  }
  if (family.labels.size() > MetricSource::kMostLabels) return refuse("it has more than 16 labels");
  std::set<std::string_view> known(std::begin(kLabels), std::end(kLabels));
  for (const std::string& label : family.labels) {
    if (!is_name(label)) return refuse("a label's name is not of letters, digits and _");
    if (!known.insert(label).second) return refuse(fmt::format("the label '{}' is there already", label));
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<MetricSource>> MetricSource::make(std::vector<MetricFamily> families,
                                                         MetricFunction function) {
  if (!function) return fail(ErrorCode::kInvalidArgument, "metrics are added without a function");
  if (families.empty() || families.size() > kMostFamilies) {
    return fail(ErrorCode::kInvalidArgument, "{} metrics are added; it must be 1 to {}", families.size(),
                kMostFamilies);
  }
  std::set<std::string_view> names;
  for (const MetricFamily& family : families) {
    if (auto good = check(family); !good) return tl::unexpected(std::move(good.error()));
    if (!names.insert(family.name).second) {
      return fail(ErrorCode::kInvalidArgument, "the metric '{}' is added twice", family.name);
    }
  }
  return std::shared_ptr<MetricSource>(new MetricSource(std::move(families), std::move(function)));
}

MetricSource::MetricSource(std::vector<MetricFamily> families, MetricFunction function)
    : families_(std::make_shared<const std::vector<MetricFamily>>(std::move(families))),
      function_(std::move(function)) {}

MetricSource::~MetricSource() {
  const bool own = thread_.get_id() == std::this_thread::get_id();
  if (birthplace_.left()) {
    static_cast<void>(new std::thread(std::move(thread_)));  // it is the parent's
  } else if (own) {
    thread_.detach();  // its last act
  } else if (thread_.joinable()) {
    thread_.join();
  }
}

void MetricSource::ask() {
  const MutexLock lock(mutex_);
  if (over_ || running_) return;
  if (thread_.joinable()) thread_.join();  // it is about to end
  said_.clear();
  auto thread = start_thread("p2p-metrics", [self = shared_from_this()] { self->run(); });
  if (!thread) return odd_.log("metrics of the program are left out: {}", thread.error().message);
  thread_ = std::move(*thread);
  running_ = true;
}

void MetricSource::run() {
  std::vector<MetricSample> said;
  run_callback([&] { said = checked(function_()); });
  const MutexLock lock(mutex_);
  said_ = std::move(said);
  running_ = false;
  ended_.notify_all();
}

std::vector<MetricSample> MetricSource::checked(std::vector<MetricSample> said) {
  std::size_t bytes = 0;
  const auto odd = [&](MetricSample& sample) {
    if (sample.family >= families_->size()) return true;
    const MetricFamily& family = (*families_)[sample.family];
    if (sample.labels.size() != family.labels.size() || !std::isfinite(sample.value)) return true;
    if (family.kind == MetricKind::kCounter && sample.value < 0) return true;
    for (std::string& label : sample.labels) {
      label = PeerText(label, kLongestText).text();
      bytes += label.size();
    }
    return bytes > kMostLabelBytes;
  };
  const std::size_t all = said.size();
  if (said.size() > kMostSamples) said.resize(kMostSamples);
  std::erase_if(said, odd);
  if (said.size() < all) {
    odd_.log("{} of {} samples of metrics like {} are left out: too many, or not as they were added",
             all - said.size(), all, families_->front().name);
  }
  return said;
}

AddedSamples MetricSource::answer(Clock::time_point deadline) {
  mutex_.lock();
  while (running_ && ended_.wait_until(mutex_, deadline) != std::cv_status::timeout) {
  }
  const bool late = running_;
  AddedSamples answer{families_, late || over_ ? std::vector<MetricSample>() : said_};
  mutex_.unlock();
  if (late) late_.log("metrics like {} are left out: their function is late", families_->front().name);
  return answer;
}

void MetricSource::end() {
  if (birthplace_.left()) return;
  mutex_.lock();
  over_ = true;
  const bool own = thread_.get_id() == std::this_thread::get_id();
  // In steps: a wait without a time is a symbol of libstdc++ that is newer than the wheel's machines may
  // have.
  while (running_ && !own) ended_.wait_for(mutex_, MetricSources::kPatience);
  MetricFunction gone;  // ends without the lock: it may own anything
  if (!own) gone.swap(function_);
  mutex_.unlock();
}

void MetricSources::add(const std::shared_ptr<MetricSource>& source) {
  const MutexLock lock(mutex_);
  std::erase_if(all_, [](const auto& one) { return one.expired(); });
  all_.push_back(source);
}

std::vector<std::shared_ptr<MetricSource>> MetricSources::asked() {
  std::vector<std::shared_ptr<MetricSource>> live;
  {
    const MutexLock lock(mutex_);
    for (const auto& one : all_) {
      if (auto source = one.lock()) live.push_back(std::move(source));
    }
  }
  for (const auto& source : live) source->ask();
  return live;
}

std::vector<AddedSamples> answers_of(const std::vector<std::shared_ptr<MetricSource>>& asked,
                                     MetricSource::Clock::time_point deadline) {
  std::vector<AddedSamples> answers;
  answers.reserve(asked.size());
  for (const auto& source : asked) answers.push_back(source->answer(deadline));
  return answers;
}

AddedMetrics::AddedMetrics() = default;
AddedMetrics::AddedMetrics(std::shared_ptr<MetricSource> source) : source_(std::move(source)) {}
AddedMetrics::AddedMetrics(AddedMetrics&&) noexcept = default;
AddedMetrics& AddedMetrics::operator=(AddedMetrics&& other) noexcept {
  if (this != &other) {
    end();
    source_ = std::move(other.source_);
  }
  return *this;
}
AddedMetrics::~AddedMetrics() { end(); }

void AddedMetrics::end() {
  if (auto source = std::exchange(source_, nullptr)) source->end();
}

}  // namespace p2p
