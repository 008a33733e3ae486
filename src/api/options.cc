// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/options.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "api/engine_variables.h"
#include "api/foreign_variables.h"
#include "base/error.h"
#include "base/log.h"
#include "base/option_text.h"
#include "p2p/set_option.h"
#include "transport/registry.h"

namespace p2p {
namespace {

using Table = std::span<const OptionVariable>;

/// Read by the package `uccl`.
constexpr std::string_view kPythonsOwn = "UCCL_P2P_GPU_NAMES";

Status apply(const OptionVariable& variable, std::string_view given, Options& options) {
  const std::string_view text = option_text::trim(given);
  if (text.empty()) return {};
  if (const Status status = variable.read(text, options); !status) {
    return fail(ErrorCode::kInvalidArgument, "read {}=\"{}\": {}", variable.name, text,
                status.error().message);
  }
  return {};
}

Status read_variables(Table variables, Options& options) {
  for (const OptionVariable& variable : variables) {
    const char* set = std::getenv(variable.name);  // NOLINT(concurrency-mt-unsafe): nothing here calls setenv
    if (set == nullptr) continue;
    if (const Status status = apply(variable, set, options); !status) return status;
  }
  return {};
}

/// The variables `UCCL_P2P_*`: the engine's, then those of each transport.
std::vector<Table> own_tables() {
  std::vector<Table> tables{engine_variables()};
  for (const TransportRegistry::Entry& entry : builtin_transports().entries)
    tables.push_back(entry.variables);
  return tables;
}

const OptionVariable* find_in(Table table, std::string_view name) {
  const auto found =
      std::ranges::find_if(table, [name](const OptionVariable& one) { return name == one.name; });
  return found == table.end() ? nullptr : &*found;
}

const OptionVariable* find_variable(std::string_view name) {
  for (const Table table : own_tables()) {
    if (const OptionVariable* const found = find_in(table, name)) return found;
  }
  return nullptr;
}

/// For variables that other engines have and this one has not, and for misspelled names.
void name_those_without_effect() {
  if (!log_enabled(LogLevel::kDebug)) return;
  const auto known = [](std::string_view name) {
    return find_variable(name) != nullptr || find_in(foreign_variables(), name) != nullptr;
  };
  for (const char* const* entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view name(*entry, std::strcspn(*entry, "="));
    if (!name.starts_with("UCCL_") || name == kPythonsOwn || known(name)) continue;
    log(LogLevel::kDebug, "{} is set and changes nothing here; docs/options.md lists what does", name);
  }
}

tl::unexpected<Error> no_variable(std::string_view name) {
  return fail(ErrorCode::kNotFound, "set {}: there is no option of that name", name);
}

}  // namespace

Result<Options> Options::from_environment() {
  Options options;
  if (const Status read = read_variables(foreign_variables(), options); !read)
    return tl::unexpected(read.error());
  for (const Table table : own_tables()) {
    if (const Status read = read_variables(table, options); !read) return tl::unexpected(read.error());
  }
  name_those_without_effect();  // last: the level to log at is one of the variables
  return options;
}

Status set_option(Options& options, std::string_view variable, std::string_view text) {
  const OptionVariable* const known = find_variable(variable);
  return known == nullptr ? no_variable(variable) : apply(*known, text, options);
}

Status reset_option(Options& options, std::string_view variable) {
  const OptionVariable* const known = find_variable(variable);
  return known == nullptr ? no_variable(variable) : known->read(known->show(Options()), options);
}

std::vector<OptionRow> option_rows() {
  const Options defaults;
  std::vector<OptionRow> rows;
  std::vector<Table> tables = own_tables();
  tables.push_back(foreign_variables());
  for (const Table table : tables) {
    for (const OptionVariable& variable : table) {
      rows.push_back({variable.name, variable.meaning, variable.show(defaults)});
    }
  }
  return rows;
}

}  // namespace p2p
