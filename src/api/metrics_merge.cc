// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "api/metrics_merge.h"

#include <fmt/format.h>

#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace p2p {
namespace {

constexpr std::string_view kEnd = "# EOF\n";

/// A metric's lines: what it is, once, and its values of all processes, which must stand together.
struct Family {
  std::string head;
  std::string series;
};

class Merged {
 public:
  void add(std::string_view process, std::string_view page) {
    Family* family = nullptr;
    bool first = false;
    while (!page.empty()) {
      const std::size_t end = page.find('\n');
      const std::string_view line = page.substr(0, end);
      page.remove_prefix(end == std::string_view::npos ? page.size() : end + 1);
      if (line.starts_with("# TYPE ")) {
        const std::string_view rest = line.substr(7);
        std::tie(family, first) = of(rest.substr(0, rest.find(' ')));
        // Programs may add one name as different kinds: the first process has it, or no collector takes the
        // page.
        if (!first && !family->head.starts_with(fmt::format("{}\n", line))) family = nullptr;
      }
      if (family == nullptr) continue;
      if (line.starts_with('#')) {
        if (first && line != kEnd.substr(0, kEnd.size() - 1)) fmt::format_to(to(family->head), "{}\n", line);
      } else if (const std::size_t brace = line.find('{'); brace != std::string_view::npos) {
        fmt::format_to(to(family->series), "{}{{process=\"{}\",{}\n", line.substr(0, brace), process,
                       line.substr(brace + 1));
      }
    }
  }

  std::string text() const {
    std::string all;
    for (const Family* const one : order_) all += one->head + one->series;
    return all;
  }

 private:
  static std::back_insert_iterator<std::string> to(std::string& text) { return std::back_inserter(text); }

  /// And whether it is new.
  std::pair<Family*, bool> of(std::string_view name) {
    const auto [at, made] = families_.try_emplace(std::string(name));
    if (made) order_.push_back(&at->second);
    return {&at->second, made};
  }

  std::map<std::string, Family> families_;
  std::vector<const Family*> order_;
};

void tell_apart(std::span<ProcessReply> replies) {
  std::map<std::string, unsigned> seen;
  for (ProcessReply& one : replies) {
    if (const unsigned before = seen[one.process]++; before > 0) {
      one.process += fmt::format("-{}", before + 1);
    }
  }
}

}  // namespace

http::Reply merge_metrics(std::span<ProcessReply> replies) {
  tell_apart(replies);
  Merged merged;
  std::string type;
  bool open = false;
  std::string up =
      "# TYPE p2p_process_up gauge\n"
      "# HELP p2p_process_up Whether the process answers, or has not in time (0).\n";
  for (const ProcessReply& one : replies) {
    const bool good = one.reply && one.reply->status == 200;
    fmt::format_to(std::back_inserter(up), "p2p_process_up{{process=\"{}\"}} {:d}\n", one.process, good);
    if (!good) continue;
    merged.add(one.process, one.reply->body);
    type = one.reply->type;
    open = open || one.reply->body.ends_with(kEnd);
  }
  return {200, type, merged.text() + up + std::string(open ? kEnd : "")};
}

http::Reply merge_health(std::span<ProcessReply> replies) {
  tell_apart(replies);
  http::Reply whole{200, "text/plain", {}};
  for (const ProcessReply& one : replies) {
    if (!one.reply || one.reply->status != 200) whole.status = 503;
    if (replies.size() > 1) whole.body += fmt::format("process {}: ", one.process);
    whole.body += one.reply ? one.reply->body : "does not answer\n";
  }
  return whole;
}

}  // namespace p2p
