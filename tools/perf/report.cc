// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>
#include <utility>

#include "baseline.h"
#include "failure.h"
#include "sizes.h"

namespace p2p::perf {
namespace {

constexpr const char* kHeader =
    "op     transport  size  blocks  depth     GB/s    min   med   max  messages/s     p50 us     p99 us    "
    "post us  "
    "verified\n";

/// This machine's name, processor and cores, for whoever reads the figures elsewhere.
std::string describe_machine() {
  utsname names{};
  (void)::uname(&names);
  std::string processor = names.machine;
  std::ifstream cpus("/proc/cpuinfo");
  constexpr std::string_view kModel = "model name";
  for (std::string line; std::getline(cpus, line);) {
    const std::size_t colon = line.find(": ");
    if (!line.starts_with(kModel) || colon == std::string::npos) continue;
    processor = line.substr(colon + 2);
    break;
  }
  return fmt::format("{}, {}, {} cores", names.nodename, processor, std::thread::hardware_concurrency());
}

/// The day in UTC, as 2026-11-27.
std::string today() {
  const std::chrono::year_month_day day{
      std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now())};
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(day.year()), static_cast<unsigned>(day.month()),
                     static_cast<unsigned>(day.day()));
}

}  // namespace

Result<File> open_output(const std::string& path) {
  if (path == "-") return File(stdout);
  File file(std::fopen(path.c_str(), "w"));
  if (!file) return fail_errno(fmt::format("write {}", path));
  return file;
}

Result<Report> Report::open(const std::string& json_path) {
  if (json_path.empty()) return Report(nullptr);
  auto json = open_output(json_path);
  if (!json) return tl::unexpected(json.error());
  return Report(std::move(*json));
}

Report::Report(File json)
    : json_(std::move(json)),
      table_(json_.get() == stdout ? stderr : stdout),
      watched_(::isatty(STDERR_FILENO) == 1),
      machine_(describe_machine()) {}

void Report::begin(const std::string& what) {
  if (!watched_) return;
  fmt::print(stderr, "\r\033[K{} ...", what);
  std::fflush(stderr);
}

void Report::clear_progress() {
  if (!watched_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

void Report::row(const Row& row, const Figures& figures) {
  clear_progress();
  rows_.emplace_back(row, figures);
  if (!std::exchange(has_header_, true)) fmt::print(table_, "{}", kHeader);
  fmt::print(table_,
             "{:6} {:9} {:>5} {:>7} {:>6} {:>8.3f} {:>18} {:>11.1f} {:>10.1f} {:>10.1f} {:>10.2f}  {}\n",
             to_string(row.operation), figures.taken.transport, format_size(row.size), row.blocks, row.depth,
             figures.gbytes_per_second(row),
             fmt::format("{:5.2f} {:5.2f} {:5.2f}", figures.spread.least, figures.spread.median,
                         figures.spread.most),
             figures.messages_per_second(), figures.latency_us_p50, figures.latency_us_p99, figures.post_us,
             !row.verify        ? "not checked"
             : figures.verified ? "yes"
                                : "NO");
  if (row.beside != 0) {
    fmt::print(table_, "  beside: transfers of {}: {:.3f} GB/s\n", format_size(row.beside),
               figures.beside_gbytes_per_second);
  }
  std::fflush(table_);
  if (!json_) return;
  const nlohmann::ordered_json object{
      {"op", to_string(row.operation)},
      {"transport", figures.taken.transport},
      {"size_bytes", row.size},
      {"blocks", row.blocks},
      {"depth", row.depth},
      {"streams", row.streams},
      {"gbytes_per_second", figures.gbytes_per_second(row)},
      {"gbytes_per_second_rounds", {figures.spread.least, figures.spread.median, figures.spread.most}},
      {"messages_per_second", figures.messages_per_second()},
      {"latency_us_p50", figures.latency_us_p50},
      {"latency_us_p99", figures.latency_us_p99},
      {"post_us", figures.post_us},
      {"first_us", figures.first_us},
      {"tenth_us", figures.tenth_us},
      {"pause_ms", row.pause.count()},
      {"awake", row.awake},
      {"priority", to_string(row.priority)},
      {"rate", row.rate},
      {"digest", row.digest},
      {"beside_bytes", row.beside},
      {"beside_gbytes_per_second", figures.beside_gbytes_per_second},
      {"verified", figures.verified},
      {"machine", machine_},
      {"date", today()},
      {"channels", figures.stats.channels},
      {"channels_wanted", figures.stats.channels_wanted},
      {"channels_lost", figures.stats.channels_lost},
      {"channels_returned", figures.stats.channels_returned},
      {"session_resumes", figures.stats.session_resumes},
  };
  fmt::print(json_.get(), "{}\n", object.dump());
  std::fflush(json_.get());
}

void Report::baseline(const Baseline& figure) {
  fmt::print(table_, "{:58} {:9.2f} {}\n", figure.text, figure.value, figure.unit);
  if (json_) fmt::print(json_.get(), "{}\n", to_json(figure));
}

void Report::failed(const std::string& what, const Error& error) {
  clear_progress();
  std::fflush(table_);
  fmt::print(stderr, "p2p-perf: {}: {}: {}\n", what, p2p::to_string(error.code), error.message);
}

void Report::route(const Route& route) {
  std::string line = fmt::format("route: {}: {}{}{}", route.transport.empty() ? "none" : route.transport,
                                 route.reason, route.detail.empty() ? "" : "; ", route.detail);
  if (std::find(routes_.begin(), routes_.end(), line) == routes_.end()) routes_.push_back(std::move(line));
}

void Report::history(const Route& route) {
  if (!route.history.empty()) routes_.push_back("paths: " + route.history);
}

void Report::finish() {
  clear_progress();
  for (; routes_shown_ < routes_.size(); ++routes_shown_) fmt::print(table_, "{}\n", routes_[routes_shown_]);
  std::fflush(table_);
}

}  // namespace p2p::perf
