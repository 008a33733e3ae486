// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/peer.h"

namespace p2p::testing::trace {
namespace {

using Json = nlohmann::json;

/// A name for a trace, which is deleted at the end.
class TraceFile {
 public:
  static constexpr const char* kNextLine = ",\n";

  explicit TraceFile(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / ("p2p_" + std::to_string(::getpid()) + "_" + name)) {}
  ~TraceFile() { std::filesystem::remove(path_); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  std::string name() const { return path_.string(); }

  std::string text() const {
    std::ifstream file(path_);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
  }

  Json events() const { return events_of(text()); }

  /// As viewers take it: the last bracket may be missing, and the last line be cut at any place.
  static Json events_of(std::string trace) {
    if (trace.ends_with("\n]\n")) return Json::parse(trace);
    if (!Json::accept(trace + "]")) trace.resize(trace.rfind(kNextLine));
    return Json::parse(trace + "]");
  }

  /// Whether a line with `words` is there as a whole.
  bool tells(const std::string& words) const {
    const std::string all = text();
    const std::size_t at = all.find(words);
    return at != std::string::npos && all.find(kNextLine, at) != std::string::npos;
  }

 private:
  std::filesystem::path path_;
};

Options traced(const TraceFile& file, const std::string& transport) {
  Options options = EndpointPlan{.transport = transport}.options();
  options.trace = file.name();
  return options;
}

/// Writes `size` bytes from one endpoint of this process to another, `times` times, each with its own id.
void write_some(const Options& options, std::size_t size, std::uint64_t times) {
  Endpoint left = Endpoint::create(options).value();
  Endpoint right = Endpoint::create(options).value();
  std::vector<char> out(size, 'x');
  std::vector<char> into(size);
  const MemoryRegion source = left.register_memory(out.data(), size).value();
  const MemoryRegion target = right.register_memory(into.data(), size).value();
  const Connection connection = left.connect(right.address(), right.port(), kLimit).value();
  const RemoteSpan there{connection.import_region(target.descriptor()).value(), target.descriptor().address,
                         size};
  for (std::uint64_t i = 1; i <= times; ++i) {
    const Transfer transfer = connection.write(source.span(), there, {.trace_id = 1000 + i});
    EXPECT_TRUE(is_ok(transfer.wait(kLimit)));
  }
  EXPECT_EQ(out, into);
}

class TraceTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, TraceTest, ::testing::Values("tcp", "cma"),
                         [](const ::testing::TestParamInfo<const char*>& one) {
                           return std::string(one.param);
                         });

TEST_P(TraceTest, TellsOfEachTransferFromItsStartToItsEnd) {
  constexpr std::size_t kSize = (3U << 20) + 5;
  const TraceFile file(std::string("whole_") + GetParam());
  write_some(traced(file, GetParam()), kSize, 4);
  struct Seen {
    std::uint64_t id = 0;
    std::vector<std::string> phases;
    double begin = 0;
    double end = 0;
    std::uint64_t piece_bytes = 0;
  };
  std::map<std::string, Seen> transfers;
  std::map<std::string, double> open;
  ASSERT_TRUE(file.text().ends_with("\n]\n"));
  for (const Json& event : file.events()) {
    if (event["ph"] == "M") {
      EXPECT_EQ(event["pid"], ::getpid());
      continue;
    }
    const double at = event["ts"];
    if (event["cat"] == "transfer") {
      Seen& seen = transfers[event["id"]];
      seen.phases.push_back(event["ph"]);
      if (event["ph"] == "b") {
        seen.id = event["args"]["id"];
        seen.begin = at;
        EXPECT_EQ(event["name"], "write");
        EXPECT_EQ(event["args"]["bytes"], kSize);
        EXPECT_EQ(event["args"]["blocks"], 1);
      }
      if (event["ph"] == "e") {
        seen.end = at;
        EXPECT_EQ(event["args"]["outcome"], "ok");
      }
    } else if (event["ph"] == "b") {
      EXPECT_TRUE(open.emplace(event["id"], at).second);
      EXPECT_EQ(event["args"]["transport"], GetParam());
      transfers[event["args"]["transfer"]].piece_bytes += event["args"]["bytes"].get<std::uint64_t>();
    } else {
      EXPECT_LE(open.at(event["id"]), at);
      open.erase(event["id"]);
      EXPECT_EQ(event["args"]["outcome"], "ok");
    }
  }
  EXPECT_TRUE(open.empty());
  ASSERT_EQ(transfers.size(), 4U);
  std::uint64_t expected = 1000;
  std::map<double, Seen> by_time;
  for (const auto& [number, seen] : transfers) by_time.emplace(seen.begin, seen);
  for (const auto& [begin, seen] : by_time) {
    EXPECT_EQ(seen.id, ++expected);
    EXPECT_THAT(seen.phases, ::testing::ElementsAre("b", "n", "e"));
    EXPECT_LT(begin, seen.end);
    EXPECT_EQ(seen.piece_bytes, kSize);
  }
}

TEST(TraceFileTest, ATransferThatCannotStartEndsWithItsError) {
  const TraceFile file("failed");
  {
    const Options options = traced(file, "tcp");
    Endpoint left = Endpoint::create(options).value();
    Endpoint right = Endpoint::create(options).value();
    const Connection connection = left.connect(right.address(), right.port(), kLimit).value();
    char byte = 0;
    EXPECT_FALSE(
        connection.write({RegionId{77}, reinterpret_cast<std::byte*>(&byte), 1}, {RemoteRegionId{1}, 0, 1})
            .wait(kLimit));
  }
  std::string outcome;
  for (const Json& event : file.events()) {
    if (event["ph"] == "e") outcome = event["args"]["outcome"];
  }
  EXPECT_EQ(outcome, "not_found");
}

TEST(TraceFileTest, EndsAtItsLimitAndStaysGood) {
  const TraceFile file("small");
  Options options = traced(file, "cma");
  options.trace_bytes = 4096;
  write_some(options, 64, 2000);
  EXPECT_LE(std::filesystem::file_size(file.name()), 4096U);
  EXPECT_FALSE(file.events().empty());
}

TEST(TraceFileTest, WhatWasWrittenOutlivesAKill) {
  const TraceFile file("killed");
  auto child = Process::forked([&]() -> int {
    write_some(traced(file, "cma"), 64, 100);
    // The first trace has been closed; this one is open when the end comes.
    const Options options = traced(file, "cma");
    Endpoint left = Endpoint::create(options).value();
    Endpoint right = Endpoint::create(options).value();
    char byte = 0;
    const MemoryRegion region = left.register_memory(&byte, 1).value();
    const Connection connection = left.connect(right.address(), right.port(), kLimit).value();
    while (true) {
      const Transfer sent = connection.write(region.span(), {RemoteRegionId{1}, 0, 1}, {.trace_id = 7});
      static_cast<void>(sent.wait(kLimit));
    }
  });
  ASSERT_TRUE(child);
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  while (!file.tells(R"("id":7,)") && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  child->kill_now();
  const std::string text = file.text();
  EXPECT_FALSE(text.ends_with("\n]\n"));
  bool seen = false;
  const Json events = TraceFile::events_of(text);
  for (const Json& event : events) seen |= event["ph"] == "b" && event["args"].value("id", 0) == 7;
  EXPECT_TRUE(seen);

  // A kill ends a write where a page ends, be it between two braces. The line before is whole all the same.
  const std::size_t last = text.rfind(TraceFile::kNextLine);
  const std::size_t before = text.rfind(TraceFile::kNextLine, last - 1);
  const std::string lines = "[" + text.substr(before + 1);
  for (std::size_t end = last - before + 2; end <= lines.size(); ++end) {
    EXPECT_GE(TraceFile::events_of(lines.substr(0, end)).size(), 1U) << end;
  }
}

TEST(TraceFileTest, AFileThatCannotBeWrittenStopsNobody) {
  Options options = EndpointPlan{}.options();
  options.trace = "/nowhere/at/all/trace.json";
  EXPECT_TRUE(is_ok(status_of(Endpoint::create(options))));
}

}  // namespace
}  // namespace p2p::testing::trace
