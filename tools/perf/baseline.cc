// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "baseline.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "child.h"
#include "failure.h"
#include "report.h"

namespace p2p::perf {
namespace {

constexpr std::chrono::seconds kChildPatience{60};

}  // namespace

Result<std::vector<Baseline>> measure_baselines() {
  auto figures = measure_sockets();
  if (!figures) return figures;
  auto copies = measure_copies();
  if (!copies) return copies;
  figures->insert(figures->end(), copies->begin(), copies->end());
  return figures;
}

std::string to_json(const Baseline& figure) {
  return nlohmann::ordered_json{
      {"name", figure.name}, {"text", figure.text}, {"value", figure.value}, {"unit", figure.unit}}
      .dump();
}

Status run_baseline(const std::string& json_path) {
  File json;
  if (!json_path.empty()) {
    auto opened = open_output(json_path);
    if (!opened) return tl::unexpected(opened.error());
    json = std::move(*opened);
  }
  const auto figures = measure_baselines();
  if (!figures) return tl::unexpected(figures.error());
  for (const Baseline& figure : *figures) {
    if (json.get() != stdout) fmt::print("{:58} {:9.2f} {}\n", figure.text, figure.value, figure.unit);
    if (json) fmt::print(json.get(), "{}\n", to_json(figure));
  }
  return {};
}

Result<std::vector<Baseline>> baselines_of_child() {
  auto child = Child::run_self({"baseline", "--json", "-"});
  if (!child) return tl::unexpected(child.error());
  std::vector<Baseline> figures;
  for (;;) {
    const auto line = child->read_line(kChildPatience);
    if (!line && line.error().code == ErrorCode::kPeerGone) break;
    if (!line) return tl::unexpected(line.error());
    const auto object = nlohmann::json::parse(*line, nullptr, false);
    if (!object.is_object()) return fail(ErrorCode::kProtocol, "baseline: \"{}\" is not JSON", *line);
    figures.push_back({object.value("name", ""), object.value("text", ""), object.value("value", 0.0),
                       object.value("unit", "")});
  }
  const auto status = child->wait(kChildPatience);
  if (!status) return tl::unexpected(status.error());
  if (*status != 0) return fail(ErrorCode::kSystem, "baseline ended with status {}", *status);
  return figures;
}

}  // namespace p2p::perf
