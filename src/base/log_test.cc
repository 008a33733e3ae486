// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <future>
#include <string>

#include "base/unique_fd.h"

namespace p2p {
namespace {

using ::testing::HasSubstr;

/// Puts a descriptor in the place of standard error while it lives.
class StandardError {
 public:
  explicit StandardError(int in_its_place) : before_(::dup(STDERR_FILENO)) {
    ::dup2(in_its_place, STDERR_FILENO);
  }
  ~StandardError() { ::dup2(before_.get(), STDERR_FILENO); }
  StandardError(const StandardError&) = delete;
  StandardError& operator=(const StandardError&) = delete;

 private:
  const UniqueFd before_;
};

/// What can be read at once.
std::string drain(int fd) {
  std::string all;
  std::array<char, 65536> some;
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  for (ssize_t got = 0; (got = ::read(fd, some.data(), some.size())) > 0;) {
    all.append(some.data(), static_cast<std::size_t>(got));
  }
  return all;
}

/// Logs more than `into` takes while nobody reads at `from`, then one line more.
void expect_drops(int into, int from) {
  constexpr int kLines = 10'000;
  const StandardError replaced(into);
  auto logged = std::async(std::launch::async, [] {
    for (int i = 0; i != kLines; ++i) log(LogLevel::kWarning, "line {} {}", i, std::string(100, 'x'));
  });
  const bool through = logged.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
  EXPECT_TRUE(through) << "it waits";
  std::string said = drain(from);
  if (!through) {
    while (logged.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) drain(from);
  }
  EXPECT_THAT(said, HasSubstr("line 0 "));
  EXPECT_THAT(said, ::testing::Not(HasSubstr("line 9999 ")));
  log(LogLevel::kWarning, "it takes lines again");
  said = drain(from);
  EXPECT_THAT(said, HasSubstr("lines were dropped, which standard error did not take"));
  EXPECT_THAT(said, HasSubstr("it takes lines again"));
  log(LogLevel::kWarning, "and again");
  EXPECT_THAT(drain(from), ::testing::Not(HasSubstr("dropped")));
}

TEST(LogTest, APipeThatNobodyEmptiesHoldsNobodyUp) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const UniqueFd from(ends[0]);
  const UniqueFd into(ends[1]);
  expect_drops(into.get(), from.get());
}

TEST(LogTest, ASocketThatNobodyEmptiesHoldsNobodyUp) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd from(ends[0]);
  const UniqueFd into(ends[1]);
  expect_drops(into.get(), from.get());
}

}  // namespace
}  // namespace p2p
