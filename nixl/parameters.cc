// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "parameters.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "failure.h"
#include "p2p/set_option.h"

namespace p2p::nixl {
namespace {

constexpr std::string_view kPrefix = "UCCL_P2P_";

// Of PostOptions.
constexpr std::string_view kPriority = "priority";
constexpr std::string_view kRate = "rate";
constexpr std::string_view kVerify = "verify";

// Parameters that are no options of the engine: those, and two that programs give to the backend UCCL, which
// change nothing here.
constexpr std::array kOthers{kPriority, kRate, kVerify, std::string_view("num_cpus"),
                             std::string_view("in_python")};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// Parameters and their variables. What belongs to other programs is read from the environment alone.
std::map<std::string, std::string> variables() {
  std::map<std::string, std::string> found;
  for (const OptionRow& row : option_rows()) {
    const std::string_view variable = row.variable;
    if (!variable.starts_with(kPrefix)) continue;
    std::string name(variable.substr(kPrefix.size()));
    std::transform(name.begin(), name.end(), name.begin(), lower);
    found.emplace(std::move(name), variable);
  }
  return found;
}

}  // namespace

nixl_b_params_t known_parameters() {
  nixl_b_params_t parameters;
  for (const auto& [name, variable] : variables()) parameters.emplace(name, "");
  for (const auto name : {kPriority, kRate, kVerify}) parameters.emplace(name, "");
  return parameters;
}

Result<Options> read_options(const nixl_b_params_t& given) {
  auto options = Options::from_environment();
  if (!options) return options;
  const auto known = variables();
  for (const auto& [name, value] : given) {
    if (std::ranges::find(kOthers, name) != kOthers.end()) continue;
    const auto variable = known.find(name);
    if (variable == known.end()) {
      return failure(ErrorCode::kInvalidArgument,
                     "parameter " + name + ": there is none of that name (docs/options.md has them all)");
    }
    if (const Status set = set_option(*options, variable->second, value); !set) {
      return failure(set.error().code, "parameter " + name + ": " + set.error().message);
    }
  }
  return options;
}

Result<PostOptions> read_posts(const nixl_b_params_t& given) {
  PostOptions posts;
  const auto find = [&](std::string_view name) {
    const auto found = given.find(std::string(name));
    return found == given.end() ? std::string() : found->second;
  };
  const auto bad = [](std::string_view name, const std::string& value, const std::string& wanted) {
    return failure(ErrorCode::kInvalidArgument,
                   "parameter " + std::string(name) + ": \"" + value + "\" is not " + wanted);
  };
  if (const std::string priority = find(kPriority); priority == "high") {
    posts.priority = Priority::kHigh;
  } else if (priority == "low") {
    posts.priority = Priority::kLow;
  } else if (!priority.empty() && priority != "normal") {
    return bad(kPriority, priority, "high, normal or low");
  }
  if (const std::string verify = find(kVerify); verify == "1") {
    posts.verify = true;
  } else if (!verify.empty() && verify != "0") {
    return bad(kVerify, verify, "0 or 1");
  }
  const std::string rate = find(kRate);
  const char* const end = rate.data() + rate.size();
  if (rate.empty()) return posts;
  const auto [last, error] = std::from_chars(rate.data(), end, posts.rate);
  if (error != std::errc() || last != end) return bad(kRate, rate, "a number of bytes a second");
  return posts;
}

}  // namespace p2p::nixl
