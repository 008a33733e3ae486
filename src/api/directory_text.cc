// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// An entry is a JSON object, as Python's json writes it.
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "api/directory_drivers.h"
#include "api/json.h"

namespace p2p::directories {
namespace {

using SystemClock = std::chrono::system_clock;

double seconds_of(SystemClock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

std::string text_of(const DirectoryEntry& entry, std::optional<SystemClock::time_point> until) {
  const std::string end = until ? fmt::format(R"(, "until": {:.6f})", seconds_of(*until)) : "";
  return fmt::format(R"({{"address": {}, "port": {}, "gpu": {}{}}})", Json::quoted(entry.address), entry.port,
                     is_number(entry.gpu) ? entry.gpu : Json::quoted(entry.gpu), end);
}

std::optional<DirectoryEntry> parse(const std::string& name, std::string_view text,
                                    SystemClock::time_point now) {
  const auto fields = Json::parse(text);
  if (!fields) return std::nullopt;
  const auto scalar = [&](const char* field) {
    const Json* const value = fields->find(field);
    return value == nullptr ? nullptr : value->scalar();
  };
  const std::string* const address = scalar("address");
  const std::string* const port = scalar("port");
  const std::string* const gpu = scalar("gpu");
  if (address == nullptr || port == nullptr || gpu == nullptr) return std::nullopt;
  DirectoryEntry entry{name, *address, 0, *gpu};
  const auto [end, error] = std::from_chars(port->data(), port->data() + port->size(), entry.port);
  if (error != std::errc() || end != port->data() + port->size() || entry.port == 0) return std::nullopt;
  if (fields->find("until") != nullptr) {
    const std::string* const until = scalar("until");
    char* stop = nullptr;
    const double when = until == nullptr ? 0 : std::strtod(until->c_str(), &stop);
    if (until == nullptr || stop == until->c_str() || !(when >= seconds_of(now))) return std::nullopt;
  }
  return entry;
}

}  // namespace p2p::directories
