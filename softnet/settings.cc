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

bool* habit_of(Habits& habits, std::string_view name) {
  if (name == "lazy_pool") return &habits.lazy_pool;
  if (name == "accept_thread") return &habits.accept_thread;
  if (name == "accept_blocks") return &habits.accept_blocks;
  if (name == "accept_exits") return &habits.accept_exits;
  if (name == "other_handles") return &habits.other_handles;
  if (name == "null_requests") return &habits.null_requests;
  if (name == "sigpipe") return &habits.sigpipe;
  if (name == "last_tokens") return &habits.last_tokens;
  if (name == "fragment_exit") return &habits.fragment_exit;
  if (name == "no_pci_path") return &habits.no_pci_path;
  if (name == "init_exit") return &habits.init_exit;
  if (name == "tcpxo") return &habits.tcpxo;
  return nullptr;
}

/// `tcpx` stands for all habits with which a host can still work.
void read_habits(Habits& habits, Reader& reader) {
  for (const std::string& name : split(reader.text("SOFTNET_HABITS"))) {
    if (name == "tcpx") {
      habits.lazy_pool = habits.accept_thread = habits.accept_blocks = habits.sigpipe = true;
      habits.last_tokens = habits.fragment_exit = true;
    } else if (bool* const habit = habit_of(habits, name)) {
      *habit = true;
    } else {
      reader.complain(fmt::format("SOFTNET_HABITS has no habit named {}", name));
    }
  }
  // As the plugin that is imitated reads them.
  habits.task_bytes = reader.number("NCCL_DYNAMIC_CHUNK_SIZE", 0);
  habits.receive_manager = reader.text("NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX");
  if (habits.receive_manager.empty()) habits.receive_manager = "/tmp";
  habits.sockets = reader.number("NCCL_NSOCKS_PERTHREAD", 1) * reader.number("NCCL_SOCKET_NTHREADS", 1);
}

Fragments read_fragments(Reader& reader) {
  const std::string text = reader.text("SOFTNET_FRAGMENTS");
  if (text == "random") return Fragments::kRandom;
  if (text == "packets") return Fragments::kPackets;
  if (!text.empty() && text != "pages") {
    reader.complain(
        fmt::format("SOFTNET_FRAGMENTS={} is none of pages, random and packets; using pages", text));
  }
  return Fragments::kPages;
}

Settings& current_settings() {
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
  settings.stage = !settings.cuda && reader.number("SOFTNET_STAGE", 0) != 0;
  settings.strict = reader.number("SOFTNET_STRICT", 0) != 0;
  settings.report_sizes = reader.number("SOFTNET_REPORT_SIZES", 0) != 0;
  settings.seed = reader.number("SOFTNET_SEED", settings.seed);
  settings.pool_bytes = std::clamp<std::uint64_t>(reader.number("SOFTNET_POOL_MIB", 256), 1, 4095) << 20;
  settings.timeout = std::chrono::milliseconds(reader.number("SOFTNET_TIMEOUT_MS", 10000));
  settings.fragments = read_fragments(reader);
  settings.pci_path = reader.text("SOFTNET_PCI_PATH");
  read_habits(settings.habits, reader);
  if (settings.habits.tcpxo) settings.unpack = false;
  for (const std::string& fault : split(reader.text("SOFTNET_FAULT"))) read_fault(settings, reader, fault);
  return settings;
}

const char* name_at_load() {
  static const std::string* const name = [] {
    const char* const set = std::getenv("SOFTNET_NAME");
    return new std::string(set == nullptr || *set == '\0' ? "softnet" : set);
  }();
  return name->c_str();
}

bool tcpxo_at_load() {
  std::vector<std::string> complaints;
  Habits habits;
  Reader reader(complaints);
  read_habits(habits, reader);
  return habits.tcpxo;
}

const Settings& settings() { return current_settings(); }
void set_settings(Settings settings) { current_settings() = std::move(settings); }

}  // namespace softnet
