// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "convert/options.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <string>
#include <string_view>

#include "convert/errors.h"
#include "p2p/set_option.h"

namespace p2p::python {
namespace nb = nanobind;
namespace {

/// Keywords that are not simply a variable's name in small letters.
struct Alias {
  std::string_view keyword;
  std::string_view variable;
  bool seconds = false;  ///< where the variable has milliseconds
};
constexpr std::array kAliases{
    Alias{"transports", "UCCL_P2P_TRANSPORT"},
    Alias{"require_transport", "UCCL_P2P_REQUIRE"},
    Alias{"network_only", "UCCL_P2P_DISABLE_IPC"},
    Alias{"keepalive", "UCCL_P2P_KEEPALIVE_MS", true},
    Alias{"hung", "UCCL_P2P_HUNG_MS", true},
    Alias{"idle", "UCCL_P2P_IDLE_MS", true},
    Alias{"connect_timeout", "UCCL_P2P_CONNECT_TIMEOUT_MS", true},
};

std::string variable_of(std::string_view keyword) {
  std::string variable = "UCCL_P2P_";
  for (const char c : keyword) {
    variable.push_back(c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c);
  }
  return variable;
}

std::string milliseconds(nb::handle value, std::string_view keyword) {
  const double given = nb::cast<double>(value);
  if (!(given >= 0 && given < 1e9)) {
    throw nb::value_error((std::string(keyword) + " must be seconds, at least 0").c_str());
  }
  return std::to_string(static_cast<std::uint64_t>(std::llround(given * 1000)));
}

/// A value as it would be written in the environment.
std::string text_of(nb::handle value) {
  if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value) ? "1" : "0";
  if (!nb::isinstance<nb::list>(value) && !nb::isinstance<nb::tuple>(value)) {
    return nb::cast<std::string>(nb::str(value));
  }
  std::string joined;
  for (const nb::handle item : value) {
    joined += (joined.empty() ? "" : ",") + nb::cast<std::string>(nb::str(item));
  }
  return joined;
}

/// False for a name that no option has.
bool set(Options& options, std::string_view keyword, nb::handle value) {
  const auto alias = std::ranges::find(kAliases, keyword, &Alias::keyword);
  const std::string variable = alias == kAliases.end() ? variable_of(keyword) : std::string(alias->variable);
  const std::string text =
      alias != kAliases.end() && alias->seconds ? milliseconds(value, keyword) : text_of(value);
  // An empty list or text is a choice, too: what the environment said does not count.
  const Status done = text.empty() ? reset_option(options, variable) : set_option(options, variable, text);
  if (!done && done.error().code == ErrorCode::kNotFound) return false;
  raise_unless(done);
  return true;
}

}  // namespace

Options options_from(const nb::kwargs& keywords) {
  Options options = value_or_raise(Options::from_environment());
  for (const auto& [key, value] : keywords) {
    const std::string name = nb::cast<std::string>(key);
    if (value.is_none()) continue;  // as if it had not been given
    if (!set(options, name, value)) {
      throw nb::type_error(("Endpoint() got an unexpected keyword argument '" + name + "'").c_str());
    }
  }
  return options;
}

}  // namespace p2p::python
