// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/topology/topology.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "base/log.h"

namespace p2p::topology {
namespace {

/// One cpu_set_t knows 1024 CPUs, and the kernel refuses to tell a mask that is shorter than its own.
using Mask = std::array<cpu_set_t, kMostCpus / CPU_SETSIZE>;

/// A number at the beginning of `text`, which is then what comes after it.
std::optional<unsigned> take_cpu(std::string_view& text) {
  unsigned number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number >= kMostCpus) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return number;
}

/// Of "first" or "first-last" at the beginning of `text`; false if there is neither.
bool take_range(std::string_view& text, Cpus& cpus) {
  const auto first = take_cpu(text);
  auto last = first;
  if (first && text.starts_with('-')) {
    text.remove_prefix(1);
    last = take_cpu(text);
  }
  if (!last || *last < *first) return false;
  for (unsigned cpu = *first; cpu <= *last; ++cpu) cpus.insert(cpu);
  return true;
}

Result<std::string> read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line) && !file.eof()) {
    return tl::unexpected(system_error(fmt::format("read {}", path)));
  }
  return line;
}

std::string path_of(const std::string& pci_address, const std::string& sysfs_root, const char* file) {
  return fmt::format("{}/bus/pci/devices/{}/{}", sysfs_root, pci_address, file);
}

}  // namespace

Result<Cpus> parse_cpus(std::string_view text) {
  std::string_view left = text.substr(0, text.size() - (text.ends_with('\n') ? 1 : 0));
  Cpus cpus;
  while (!left.empty()) {
    const bool more = take_range(left, cpus) && (left.empty() || (left.starts_with(',') && left.size() > 1));
    if (!more) {
      return fail(ErrorCode::kInvalidArgument, "read the list of CPUs \"{}\": no number or range at \"{}\"",
                  text, left);
    }
    if (!left.empty()) left.remove_prefix(1);
  }
  return cpus;
}

Result<Cpus> cpus_near(const std::string& pci_address, const std::string& sysfs_root) {
  const auto line = read_line(path_of(pci_address, sysfs_root, "local_cpulist"));
  if (!line) return tl::unexpected(line.error());
  return parse_cpus(*line);
}

int numa_node_of(const std::string& pci_address, const std::string& sysfs_root) {
  const auto line = read_line(path_of(pci_address, sysfs_root, "numa_node"));
  int node = -1;
  if (line) std::from_chars(line->data(), line->data() + line->size(), node);
  return std::max(node, -1);
}

Result<Cpus> cpus_of(pthread_t thread) {
  Mask mask{};
  if (const int code = ::pthread_getaffinity_np(thread, sizeof mask, mask.data()); code != 0) {
    return tl::unexpected(system_error("ask for the CPUs of a thread", code));
  }
  Cpus cpus;
  for (unsigned cpu = 0; cpu != kMostCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, sizeof mask, mask.data())) cpus.insert(cpu);
  }
  return cpus;
}

void keep_on(pthread_t thread, const Cpus& cpus, const Cpus& allowed) {
  Cpus wanted;
  std::ranges::set_intersection(cpus, allowed, std::inserter(wanted, wanted.end()));
  const auto now = cpus_of(thread);
  if (wanted.empty() || (now && *now == wanted)) {
    log(LogLevel::kDebug, "a thread is left where it is: {} of the CPUs {} are allowed to it", wanted.size(),
        fmt::join(cpus, ","));
    return;
  }
  Mask mask{};
  for (const unsigned cpu : wanted) CPU_SET_S(cpu, sizeof mask, mask.data());
  const int code = ::pthread_setaffinity_np(thread, sizeof mask, mask.data());
  log(LogLevel::kDebug, "keep a thread on the CPUs {}: {}", fmt::join(wanted, ","),
      code == 0 ? "done" : system_error("refused", code).message);
}

}  // namespace p2p::topology
