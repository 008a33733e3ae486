// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "p2p/log.h"
#include "p2p/set_option.h"

namespace p2p {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;

/// Starts each test without any of the variables, and leaves none behind.
class OptionsTest : public ::testing::Test {
 protected:
  OptionsTest() { clear(); }
  ~OptionsTest() override {
    clear();
    set_log_level(LogLevel::kWarning);
  }

  static void set(const std::string& name, const std::string& value) {
    ASSERT_EQ(::setenv(("UCCL_P2P_" + name).c_str(), value.c_str(), 1), 0);
  }

  static Options read() {
    const Result<Options> options = Options::from_environment();
    EXPECT_TRUE(options) << options.error().message;
    return options.value_or(Options{});
  }

  static std::string refusal() {
    const Result<Options> options = Options::from_environment();
    if (options) return "accepted";
    EXPECT_EQ(options.error().code, ErrorCode::kInvalidArgument);
    return options.error().message;
  }

 private:
  static void clear() {
    for (const OptionRow& row : option_rows()) ::unsetenv(row.variable);
  }
};

TEST_F(OptionsTest, DefaultsWithoutVariables) {
  const Options options = read();
  const Options defaults;
  EXPECT_EQ(options.port, defaults.port);
  EXPECT_EQ(options.keepalive, milliseconds(3000));
  EXPECT_EQ(options.hung, milliseconds(30000));
  EXPECT_EQ(options.idle, milliseconds(60000));
  EXPECT_EQ(options.batch_bytes, defaults.batch_bytes);
  EXPECT_THAT(options.transports, IsEmpty());
  EXPECT_TRUE(options.require_transport);
  EXPECT_TRUE(options.place_threads);
}

TEST_F(OptionsTest, ATransportMayBeRequired) {
  set("REQUIRE", "cuda_ipc");
  Options options = read();
  EXPECT_EQ(options.required, "cuda_ipc");
  EXPECT_TRUE(options.require_transport);
  set("REQUIRE", "0");
  options = read();
  EXPECT_EQ(options.required, "");
  EXPECT_FALSE(options.require_transport);
}

TEST_F(OptionsTest, EveryVariableReachesItsField) {
  set("LISTEN_ADDRESS", " 127.0.0.1 ");
  set("PORT", "65535");
  set("TRANSPORT", "cma, tcp");
  set("REQUIRE", "off");
  set("WORKERS", "3");
  set("PLACE_THREADS", "0");
  set("STREAMS", "7");
  set("INTERFACES", "eth1,10.0.0.4");
  set("KEEPALIVE_MS", "250");
  set("HUNG_MS", "20000");
  set("IDLE_MS", "0");
  set("NOTIFICATIONS", "10");
  set("NOTIFICATION_BYTES", "1M");
  set("CONNECT_TIMEOUT_MS", "5000");
  set("SPIN_US", "0");
  set("KEY_FILE", "/etc/key");
  set("BATCH_BYTES", "512K");
  set("ZEROCOPY_BYTES", "2M");
  set("NCCL_NET_CHUNK", "4M");
  set("NCCL_NET_WINDOW", "12");
  set("NCCL_NET_CHANNELS", "3");
  set("DISABLE_IPC", "1");
  set("LOG_LEVEL", "debug");
  const Options options = read();
  EXPECT_EQ(options.listen_address, "127.0.0.1");
  EXPECT_EQ(options.port, 65535);
  EXPECT_THAT(options.transports, ElementsAre("cma", "tcp"));
  EXPECT_FALSE(options.require_transport);
  EXPECT_EQ(options.workers, 3u);
  EXPECT_FALSE(options.place_threads);
  EXPECT_EQ(options.streams, 7u);
  EXPECT_THAT(options.interfaces, ElementsAre("eth1", "10.0.0.4"));
  EXPECT_EQ(options.keepalive, milliseconds(250));
  EXPECT_EQ(options.hung, milliseconds(20000));
  EXPECT_EQ(options.idle, milliseconds(0));
  EXPECT_EQ(options.notifications, 10U);
  EXPECT_EQ(options.notification_bytes, std::size_t{1} << 20);
  EXPECT_EQ(options.connect_timeout, milliseconds(5000));
  EXPECT_EQ(options.spin, microseconds(0));
  EXPECT_EQ(options.key_file, "/etc/key");
  EXPECT_EQ(options.batch_bytes, std::size_t{512} << 10);
  EXPECT_EQ(options.zerocopy_bytes, std::size_t{2} << 20);
  EXPECT_EQ(options.nccl_net.chunk_bytes, std::size_t{4} << 20);
  EXPECT_EQ(options.nccl_net.window, 12u);
  EXPECT_EQ(options.nccl_net.channels, 3u);
  EXPECT_TRUE(options.network_only);
  EXPECT_TRUE(log_enabled(LogLevel::kDebug));
}

TEST_F(OptionsTest, LogLevelsOfOtherEngines) {
  for (const auto& [text, level] : {std::pair{"INFO", LogLevel::kInfo},
                                    {"Warn", LogLevel::kWarning},
                                    {"1", LogLevel::kWarning},
                                    {"2", LogLevel::kError}}) {
    set("LOG_LEVEL", text);
    read();
    EXPECT_TRUE(log_enabled(level)) << text;
    EXPECT_FALSE(log_enabled(static_cast<LogLevel>(static_cast<int>(level) - 1))) << text;
  }
  for (const char* const text : {"FATAL", "3", "off"}) {
    set("LOG_LEVEL", text);
    read();
    EXPECT_FALSE(log_enabled(LogLevel::kError)) << text;
  }
}

TEST_F(OptionsTest, VariablesOfOtherPrograms) {
  ASSERT_EQ(::setenv("NCCL_SOCKET_IFNAME", "eth", 1), 0);
  ASSERT_EQ(::setenv("UCCL_TCPX_OOB_PORT", "4000", 1), 0);
  EXPECT_EQ(read().announce_interfaces, "eth");
  EXPECT_EQ(read().port, 4000);
  ASSERT_EQ(::setenv("UCCL_SOCKET_IFNAME", "=hsn0", 1), 0);
  ASSERT_EQ(::setenv("UCCL_TCP_OOB_PORT", "4001", 1), 0);
  EXPECT_EQ(read().announce_interfaces, "=hsn0");
  EXPECT_EQ(read().port, 4001);
  set("PORT", "4002");
  EXPECT_EQ(read().port, 4002);
  ASSERT_EQ(::setenv("UCCL_TCP_OOB_PORT", "x", 1), 0);
  EXPECT_THAT(refusal(), HasSubstr("UCCL_TCP_OOB_PORT=\"x\""));
}

TEST_F(OptionsTest, PortsMayBeARangeOrFollowTheRank) {
  for (const char* const name :
       {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
    ::unsetenv(name);
  set("PORT", "18500-18599");
  EXPECT_EQ(read().port, 0);
  EXPECT_EQ(read().first_port, 18500);
  EXPECT_EQ(read().last_port, 18599);
  for (const char* const wrong :
       {"18599-18500", "0-5", "1-65536", "-5", "5-", "a-b", "18500+", "+rank", "18500-18510+rank"}) {
    set("PORT", wrong);
    EXPECT_THAT(refusal(), HasSubstr(std::string("UCCL_P2P_PORT=\"") + wrong)) << wrong;
  }
  set("PORT", "18500+rank");
  EXPECT_THAT(refusal(), HasSubstr("LOCAL_RANK"));
  ASSERT_EQ(::setenv("SLURM_LOCALID", "3", 1), 0);
  EXPECT_EQ(read().port, 18503);
  ASSERT_EQ(::setenv("LOCAL_RANK", "7", 1), 0);
  EXPECT_EQ(read().port, 18507);
  EXPECT_EQ(read().last_port, 0);
  ASSERT_EQ(::setenv("LOCAL_RANK", "none", 1), 0);
  EXPECT_EQ(read().port, 18503) << "what is no number says nothing";
  set("PORT", "65533+rank");
  EXPECT_THAT(refusal(), HasSubstr("65533+rank"));
  ::unsetenv("LOCAL_RANK");
  ::unsetenv("SLURM_LOCALID");
  Options options;
  ASSERT_TRUE(set_option(options, "UCCL_P2P_PORT", "18500-18599"));
  ASSERT_TRUE(reset_option(options, "UCCL_P2P_PORT"));
  EXPECT_EQ(options.first_port, 0);
}

TEST_F(OptionsTest, CommunicatorIdGivesTheHostAlone) {
  for (const auto& [text, host] : {std::pair{"10.0.0.1:5555", "10.0.0.1"},
                                   {"[fd00::1]:5555", "fd00::1"},
                                   {"head-node:5555", "head-node"}}) {
    ASSERT_EQ(::setenv("NCCL_COMM_ID", text, 1), 0);
    EXPECT_EQ(read().announce_near, host);
  }
}

TEST_F(OptionsTest, TransportAliasesAndAuto) {
  set("TRANSPORT", "ib,tcpx,nccl");
  EXPECT_THAT(read().transports, ElementsAre("rdma", "nccl_net", "tcp"));
  set("TRANSPORT", "auto");
  EXPECT_THAT(read().transports, IsEmpty());
  set("TRANSPORT", "");
  EXPECT_THAT(read().transports, IsEmpty());
}

TEST_F(OptionsTest, EncryptionIsOffOnOrRequired) {
  EXPECT_EQ(read().tls, Encryption::kOff);
  for (const auto& [text, wish] :
       {std::pair{"on", Encryption::kOn}, {"require", Encryption::kRequire}, {"off", Encryption::kOff}}) {
    set("TLS", text);
    EXPECT_EQ(read().tls, wish) << text;
  }
  set("TLS", "integrity");
  EXPECT_THAT(refusal(), HasSubstr("OpenSSL has since 3.4"));
  set("TLS", "1");
  EXPECT_THAT(refusal(), HasSubstr("UCCL_P2P_TLS"));
}

TEST_F(OptionsTest, FabricsWithoutATransportSayWhatToSetInstead) {
  for (const char* const fabric : {"efa", "cxi"}) {
    set("TRANSPORT", fabric);
    EXPECT_THAT(refusal(), HasSubstr("UCCL_P2P_TRANSPORT=tcp")) << fabric;
  }
}

TEST_F(OptionsTest, VariablesWithoutEffectAreNamedAtDebugLevel) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::kDebug) lines.emplace_back(line);
  });
  ASSERT_EQ(::setenv("UCCL_RCMODE", "1", 1), 0);
  ASSERT_EQ(::setenv("UCCL_P2P_WORKER", "5", 1), 0);
  set("LOG_LEVEL", "debug");
  read();
  // The environment of the tests may have others.
  EXPECT_THAT(lines, IsSupersetOf({HasSubstr("UCCL_RCMODE is set and changes nothing"),
                                   HasSubstr("UCCL_P2P_WORKER is set and changes nothing")}));
  lines.clear();
  set("LOG_LEVEL", "info");
  read();
  EXPECT_THAT(lines, IsEmpty());
  set_log_sink(nullptr);
  ::unsetenv("UCCL_RCMODE");
  ::unsetenv("UCCL_P2P_WORKER");
}

TEST_F(OptionsTest, UnreadableValuesNameTheVariable) {
  const std::pair<const char*, const char*> cases[] = {
      {"PORT", "65536"},
      {"PORT", "-1"},
      {"PORT", "80x"},
      {"TRANSPORT", "tcp,,"},
      {"TRANSPORT", "a,auto"},
      {"WORKERS", "257"},
      {"PLACE_THREADS", "near"},
      {"STREAMS", "many"},
      {"INTERFACES", ","},
      {"KEEPALIVE_MS", "0"},
      {"CONNECT_TIMEOUT_MS", "99999999999"},
      {"SPIN_US", "1000001"},
      {"BATCH_BYTES", "1K"},
      {"BATCH_BYTES", "2G"},
      {"BATCH_BYTES", "K"},
      {"ZEROCOPY_BYTES", "99999999999999999999"},
      {"NCCL_NET_CHUNK", "4095"},
      {"NCCL_NET_CHUNK", "5M"},
      {"NCCL_NET_WINDOW", "0"},
      {"NCCL_NET_WINDOW", "17"},
      {"NCCL_NET_CHANNELS", "17"},
      {"ZEROCOPY_BYTES", "18446744073709551615G"},
      {"LOG_LEVEL", "loud"},
  };
  for (const auto& [name, value] : cases) {
    set(name, value);
    EXPECT_THAT(refusal(), HasSubstr(std::string("UCCL_P2P_") + name + "=\"" + value + "\"")) << name;
    ::unsetenv((std::string("UCCL_P2P_") + name).c_str());
  }
}

TEST_F(OptionsTest, SetByName) {
  Options options;
  EXPECT_TRUE(set_option(options, "UCCL_P2P_WORKERS", " 5 "));
  EXPECT_EQ(options.workers, 5U);
  EXPECT_TRUE(set_option(options, "UCCL_P2P_WORKERS", ""));
  EXPECT_EQ(options.workers, 5U) << "empty text changes nothing";
  const Status bad = set_option(options, "UCCL_P2P_WORKERS", "many");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(options.workers, 5U);
  const Status unknown = set_option(options, "UCCL_P2P_WORKER", "5");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
}

TEST_F(OptionsTest, ResetByName) {
  Options options;
  options.workers = 5;
  options.interfaces = {"eth1"};
  options.transports = {"tcp"};
  options.key_file = "/etc/key";
  for (const char* const name : {"WORKERS", "INTERFACES", "TRANSPORT", "KEY_FILE"}) {
    EXPECT_TRUE(reset_option(options, std::string("UCCL_P2P_") + name)) << name;
  }
  EXPECT_EQ(options.workers, 0U);
  EXPECT_THAT(options.interfaces, IsEmpty());
  EXPECT_THAT(options.transports, IsEmpty());
  EXPECT_EQ(options.key_file, "");
  EXPECT_EQ(reset_option(options, "UCCL_P2P_WORKER").error().code, ErrorCode::kNotFound);
}

TEST_F(OptionsTest, RowsAreDistinctAndTheirDefaultsReadBack) {
  std::set<std::string> seen;
  for (const OptionRow& row : option_rows()) {
    EXPECT_TRUE(seen.insert(row.variable).second) << row.variable;
    EXPECT_NE(row.meaning[0], '\0') << row.variable;
    ASSERT_EQ(::setenv(row.variable, row.default_value.c_str(), 1), 0);
  }
  const Options options = read();
  const Options defaults;
  EXPECT_EQ(options.batch_bytes, defaults.batch_bytes);
  EXPECT_EQ(options.zerocopy_bytes, defaults.zerocopy_bytes);
  EXPECT_EQ(options.connect_timeout, defaults.connect_timeout);
  EXPECT_EQ(options.nccl_net.chunk_bytes, defaults.nccl_net.chunk_bytes);
  EXPECT_EQ(options.nccl_net.window, defaults.nccl_net.window);
  EXPECT_EQ(options.nccl_net.channels, defaults.nccl_net.channels);
  EXPECT_THAT(options.transports, IsEmpty());
}

}  // namespace
}  // namespace p2p
