// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/observe/trace.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "base/unique_fd.h"

namespace p2p::engine {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class TraceTest : public ::testing::Test {
 protected:
  void SetUp() override { options_.trace = ::testing::TempDir() + "/p2p_trace_test.%p"; }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string text() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

  Options options_;
  const std::string path_ = ::testing::TempDir() + "/p2p_trace_test." + std::to_string(::getpid());
};

TEST_F(TraceTest, NobodyAskedForOne) { EXPECT_EQ(Trace::of_process(Options()), nullptr); }

TEST_F(TraceTest, WritesAnEventALineAndTheEndsOfTheArray) {
  {
    const auto trace = Trace::of_process(options_);
    ASSERT_NE(trace, nullptr);
    EXPECT_EQ(Trace::of_process(options_), trace) << "one for each file of a process";
    EXPECT_EQ(trace->next(), 1U);
    EXPECT_EQ(trace->next(), 2U);
    trace->note({.kind = Trace::Kind::kSubmitted,
                 .subject = {.operation = Operation::kRead, .bytes = 4096, .blocks = 3},
                 .transfer = 2});
    trace->note({.kind = Trace::Kind::kItemSent,
                 .transfer = 2,
                 .item = 5,
                 .transport = {'t', 'c', 'p'},
                 .rail = {'e', 't', 'h', '"'}});
    trace->note({.kind = Trace::Kind::kEnded, .transfer = 2, .outcome = "peer_gone"});
  }
  EXPECT_THAT(text(), StartsWith("[\n{\"ph\":\"M\""));
  EXPECT_THAT(text(), HasSubstr(R"("ph":"b","name":"read","cat":"transfer","id":"0x2")"));
  EXPECT_THAT(text(), HasSubstr(R"("bytes":4096,"blocks":3)"));
  EXPECT_THAT(text(), HasSubstr(R"("transport":"tcp","rail":"eth?")")) << "fit for a JSON string";
  EXPECT_THAT(text(), HasSubstr(R"("outcome":"peer_gone")"));
  EXPECT_THAT(text(), EndsWith("\n]\n"));
}

TEST_F(TraceTest, OneIsThereAtOnceAfterAnotherOfItsFile) {
  auto old = Trace::of_process(options_);
  for (int i = 0; i < 200; ++i) {
    std::shared_ptr<Trace> next;
    std::thread beside([&] { next = Trace::of_process(options_); });
    old.reset();
    beside.join();
    ASSERT_NE(next, nullptr) << "after " << i;
    old = std::move(next);
  }
}

TEST_F(TraceTest, EndsBeforeTheFileIsTooLarge) {
  options_.trace_bytes = 1;
  {
    const auto trace = Trace::of_process(options_);
    ASSERT_NE(trace, nullptr);
    trace->note({.transfer = trace->next()});
  }
  EXPECT_THAT(text(), Not(HasSubstr("transfer")));
}

TEST_F(TraceTest, OnlyAFileOfItsOwnIsEmptied) {
  const std::string other = path_ + ".other";
  std::ofstream(other) << "precious";
  const auto size = [&] { return std::filesystem::file_size(other); };
  std::filesystem::create_symlink(other, path_);
  EXPECT_EQ(Trace::of_process(options_), nullptr);
  EXPECT_EQ(size(), 8U) << "through a symbolic link";
  std::filesystem::remove(path_);
  std::filesystem::create_hard_link(other, path_);
  EXPECT_EQ(Trace::of_process(options_), nullptr);
  EXPECT_EQ(size(), 8U) << "under another name";
  std::filesystem::remove(path_);
  std::filesystem::remove(other);
}

TEST_F(TraceTest, AFifoHoldsNobodyUp) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(Trace::of_process(options_), nullptr);
  const UniqueFd reader(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  EXPECT_EQ(Trace::of_process(options_), nullptr) << "with a reader";
}

TEST_F(TraceTest, AnOldFileIsForItsOwnerAlone) {
  std::ofstream(path_) << "old";
  ASSERT_EQ(::chmod(path_.c_str(), 0666), 0);
  const auto trace = Trace::of_process(options_);
  ASSERT_NE(trace, nullptr);
  EXPECT_EQ(std::filesystem::status(path_).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(TraceTest, TheLimitOfFileSizesEndsTheTraceAndNotTheProcess) {
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit little{16, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  {
    const auto trace = Trace::of_process(options_);
    if (trace) trace->note({.transfer = trace->next()});
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(std::filesystem::file_size(path_), 16U);
}

TEST_F(TraceTest, AFileThatCannotBeHadIsNone) {
  options_.trace = ::testing::TempDir() + "/no/such/folder";
  EXPECT_EQ(Trace::of_process(options_), nullptr);
}

}  // namespace
}  // namespace p2p::engine
