// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "softnet/settings.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace softnet {
namespace {

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(','), text.size());
    if (end != 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

class Reader {
 public:
  explicit Reader(std::vector<std::string>& complaints) : complaints_(complaints) {}

  std::string text(const char* name) const {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  }

  std::uint64_t number(const char* name, std::uint64_t fallback) {
    const std::string value = text(name);
    return value.empty() ? fallback : parse(name, value, fallback);
  }

  std::uint64_t parse(std::string_view name, std::string_view value, std::uint64_t fallback) {
    std::uint64_t parsed = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
    if (error == std::errc{} && end == value.data() + value.size()) return parsed;
    complaints_.push_back(fmt::format("{}={} is not a number; using {}", name, value, fallback));
    return fallback;
  }

  void complain(std::string text) { complaints_.push_back(std::move(text)); }

 private:
  std::vector<std::string>& complaints_;
};

void read_fault(Settings& settings, Reader& reader, std::string_view fault) {
  const std::size_t equals = std::min(fault.find('='), fault.size());
  const std::string_view name = fault.substr(0, equals);
  const std::string_view value = fault.substr(std::min(equals + 1, fault.size()));
  if (name == "init") {
    settings.fail_init = true;
  } else if (name == "no_devices") {
    settings.no_devices = true;
  } else if (name == "null_properties") {
    settings.null_properties = true;
  } else if (name == "never_connect") {
    settings.never_connect = true;
  } else if (name == "never_accept") {
    settings.never_accept = true;
  } else if (name == "short_io") {
    settings.short_io = true;
  } else if (name == "drop_after") {
    settings.drop_after = reader.parse(name, value, 0);
  } else if (name == "stall_after") {
    settings.stall_after = reader.parse(name, value, 0);
  } else if (name == "delay_us") {
    settings.delay = std::chrono::microseconds(reader.parse(name, value, 0));
  } else {
    reader.complain(fmt::format("SOFTNET_FAULT has no fault named {}", name));
  }
}

Settings& current() {
  static Settings settings;
  return settings;
}

}  // namespace

Settings read_settings(std::vector<std::string>& complaints) {
  Reader reader(complaints);
  Settings settings;
  settings.interfaces = split(reader.text("SOFTNET_INTERFACES"));
  settings.cuda = reader.number("SOFTNET_CUDA", 0) != 0;
  settings.unpack = settings.cuda || reader.number("SOFTNET_UNPACK", 0) != 0;
  settings.strict = reader.number("SOFTNET_STRICT", 0) != 0;
  settings.report_sizes = reader.number("SOFTNET_REPORT_SIZES", 0) != 0;
  settings.seed = reader.number("SOFTNET_SEED", settings.seed);
  settings.pool_bytes = std::clamp<std::uint64_t>(reader.number("SOFTNET_POOL_MIB", 256), 1, 4095) << 20;
  settings.timeout = std::chrono::milliseconds(reader.number("SOFTNET_TIMEOUT_MS", 10000));
  const std::string fragments = reader.text("SOFTNET_FRAGMENTS");
  settings.random_fragments = fragments == "random";
  if (!fragments.empty() && fragments != "random" && fragments != "pages") {
    reader.complain(fmt::format("SOFTNET_FRAGMENTS={} is neither pages nor random; using pages", fragments));
  }
  for (const std::string& fault : split(reader.text("SOFTNET_FAULT"))) read_fault(settings, reader, fault);
  return settings;
}

const Settings& settings() { return current(); }
void set_settings(Settings settings) { current() = std::move(settings); }

}  // namespace softnet
