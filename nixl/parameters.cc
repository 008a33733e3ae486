// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "parameters.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "failure.h"
#include "p2p/set_option.h"

namespace p2p::nixl {
namespace {

constexpr std::string_view kPrefix = "UCCL_P2P_";

// What programs give to the backend UCCL: its threads, and something that is nothing to this one.
constexpr std::string_view kCpus = "num_cpus";
constexpr std::string_view kInPython = "in_python";

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
  return parameters;
}

Result<Options> read_options(const nixl_b_params_t& given) {
  auto options = Options::from_environment();
  if (!options) return options;
  const auto known = variables();
  for (const auto& [given_name, value] : given) {
    if (given_name == kInPython) continue;
    const std::string name = given_name == kCpus ? "workers" : given_name;
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

}  // namespace p2p::nixl
