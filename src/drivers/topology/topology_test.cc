// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/topology/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "support/idle_thread.h"

namespace p2p::topology {
namespace {

using ::testing::HasSubstr;
using testing::IdleThread;

TEST(CpuLists, AreReadAsTheKernelWritesThem) {
  EXPECT_EQ(parse_cpus("0-3,8,10-11").value(), (Cpus{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpus("5\n").value(), Cpus{5});
  EXPECT_EQ(parse_cpus("8190-8191").value(), (Cpus{8190, 8191}));
  EXPECT_EQ(parse_cpus("\n").value(), Cpus{});
  EXPECT_EQ(parse_cpus("").value(), Cpus{});
}

TEST(CpuLists, AnythingElseIsRefused) {
  for (const char* const text : {"x", "1-", "-1", "3-1", "1,,2", ",1", "1,", "1-2-3", "8192", "0-99999999999",
                                 "1 2", " 1", "0-7:2/4", "1\n2", "\n\n"}) {
    const auto cpus = parse_cpus(text);
    ASSERT_FALSE(cpus) << text;
    EXPECT_EQ(cpus.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(cpus.error().message, HasSubstr(text));
  }
}

/// A folder in place of /sys.
class Sysfs : public ::testing::Test {
 protected:
  ~Sysfs() override { std::filesystem::remove_all(root_); }

  void write(const std::string& file, const std::string& text) const {
    const auto folder = root_ + "/bus/pci/devices/" + kAddress;
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/" + file) << text;
  }

  static constexpr const char* kAddress = "0000:3b:00.0";
  const std::string root_ = ::testing::TempDir() + "p2p_topology_test." + std::to_string(::getpid());
};

TEST_F(Sysfs, SaysWhatIsNextToADevice) {
  write("local_cpulist", "4-5,12\n");
  write("numa_node", "1\n");
  EXPECT_EQ(cpus_near(kAddress, root_).value(), (Cpus{4, 5, 12}));
  EXPECT_EQ(numa_node_of(kAddress, root_), 1);
}

TEST_F(Sysfs, DevicesWithoutANodeAreUnknown) {
  EXPECT_EQ(numa_node_of(kAddress, root_), -1);
  const auto cpus = cpus_near(kAddress, root_);
  ASSERT_FALSE(cpus);
  EXPECT_THAT(cpus.error().message, HasSubstr("0000:3b:00.0/local_cpulist: No such file"));
  for (const char* const text : {"-1\n", "-7\n", "", "none\n"}) {
    write("numa_node", text);
    EXPECT_EQ(numa_node_of(kAddress, root_), -1) << text;
  }
  write("local_cpulist", "many\n");
  EXPECT_EQ(cpus_near(kAddress, root_).error().code, ErrorCode::kInvalidArgument);
}

TEST(Threads, KnowTheirCpus) {
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
  const Cpus mine = cpus_of(::pthread_self()).value();
  EXPECT_EQ(mine.size(), static_cast<std::size_t>(CPU_COUNT(&mask)));
  for (const unsigned cpu : mine) EXPECT_TRUE(CPU_ISSET(cpu, &mask)) << cpu;
}

TEST(Threads, AreKeptOnWhatIsAllowedOfTheirCpus) {
  const Cpus all = cpus_of(::pthread_self()).value();
  if (all.size() < 2) GTEST_SKIP() << "this process may use one CPU only";
  const unsigned first = *all.begin();
  const unsigned last = *all.rbegin();
  IdleThread thread;
  keep_on(thread.handle(), {first, kMostCpus - 1}, all);
  EXPECT_EQ(cpus_of(thread.handle()).value(), Cpus{first});
  keep_on(thread.handle(), {first, last}, {last});
  EXPECT_EQ(cpus_of(thread.handle()).value(), Cpus{last});
  keep_on(thread.handle(), all, all);
  EXPECT_EQ(cpus_of(thread.handle()).value(), all);
}

TEST(Threads, AreLeftAloneWhereNothingIsAllowed) {
  const Cpus all = cpus_of(::pthread_self()).value();
  IdleThread thread;
  keep_on(thread.handle(), {kMostCpus - 1}, all);
  EXPECT_EQ(cpus_of(thread.handle()).value(), all);
  keep_on(thread.handle(), {*all.begin()}, {kMostCpus - 1});
  EXPECT_EQ(cpus_of(thread.handle()).value(), all);
  // Allowed, but not there: the kernel refuses.
  keep_on(thread.handle(), {kMostCpus - 1}, {kMostCpus - 1});
  EXPECT_EQ(cpus_of(thread.handle()).value(), all);
}

}  // namespace
}  // namespace p2p::topology
