// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/plugin.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "drivers/nccl_net/comm.h"
#include "drivers/nccl_net/defaults.h"
#include "drivers/nccl_net/log_route.h"
#include "drivers/nccl_net/tcpxo.h"
#include "drivers/nccl_net/testing/fake_plugin.h"
#include "drivers/nccl_net/window.h"
#include "p2p/log.h"

namespace p2p::nccl_net {
namespace {

using testing::FakeState;
using ::testing::HasSubstr;

std::string fake_path(const std::string& version) {
  return std::string(FAKE_PLUGIN_FOLDER) + "/libnccl_net_fake_" + version + ".so";
}

/// A copy of a fake of one's own, since a library is initialised once a process, and its state: dlopen gives
/// one file one handle.
struct Fake {
  explicit Fake(const std::string& version) {
    static int copies = 0;
    path = ::testing::TempDir() + "nccl_net_fake_" + std::to_string(::getpid()) + "_" +
           std::to_string(++copies) + ".so";
    std::filesystem::copy_file(fake_path(version), path, std::filesystem::copy_options::overwrite_existing);
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(handle, nullptr) << ::dlerror();
    state = reinterpret_cast<testing::FakeStateFunction>(::dlsym(handle, "fake_state"))();
  }
  ~Fake() { std::filesystem::remove(path); }

  std::string path;
  FakeState* state = nullptr;
};

class EveryVersion : public ::testing::TestWithParam<int> {
 protected:
  std::string version() const { return "v" + std::to_string(GetParam()); }

  std::pair<SendWindow, ReceiveWindow> connect() {
    state_.connects_pending = state_.accepts_pending = 0;
    const auto plugin = Plugin::open(fake_.path).value();
    const Device device = *plugin->device(0);
    auto listener = Listener::open(plugin, device);
    Connector connector(plugin, device, listener->handle());
    return {SendWindow(**connector.poll()), ReceiveWindow(**listener->poll())};
  }

  Fake fake_{version()};
  FakeState& state_ = *fake_.state;
};

TEST(PeerHandle, KeepsPeersAwayFromThePluginsOwnPointer) {
  Handle handle;
  handle.fill(std::byte{0x41});
  EXPECT_EQ(handle_from_peer(handle, {}, "Fake"), handle);
  EXPECT_FALSE(knows_handles_of("Fake"));
  EXPECT_TRUE(knows_handles_of("GPUDirectTCPX_v7"));
  Handle own{};
  own[90] = std::byte{1};  // of a field of the listener's
  const Handle cleaned = handle_from_peer(handle, own, "GPUDirectTCPX_v7");
  for (std::size_t at = 0; at < cleaned.size(); ++at) {
    const bool is_field = at < 80 || (at >= 88 && at < 96);
    EXPECT_EQ(cleaned[at], is_field ? std::byte{0x41} : std::byte{}) << "byte " << at;
  }
}

TEST(Defaults, FillInWhatGpuDirectTcpxCannotDoWithout) {
  constexpr const char* kChunk = "NCCL_DYNAMIC_CHUNK_SIZE";
  constexpr const char* kWait = "NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS";
  ::unsetenv(kChunk);
  ::setenv(kWait, "7", 1);
  set_plugin_defaults("Fake");
  EXPECT_EQ(::getenv(kChunk), nullptr);
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  set_plugin_defaults("GPUDirectTCPX_v7");
  set_log_sink(nullptr);
  EXPECT_STREQ(::getenv(kChunk), "524288");
  EXPECT_STREQ(::getenv(kWait), "7") << "what the user set stays";
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr(kChunk)));
  ::unsetenv(kChunk);
  ::unsetenv(kWait);
}

TEST(Init, ThatAbortsEndsAChildOnly) {
  Fake fake("v9");
  fake.state->init_aborts = true;
  const auto plugin = Plugin::open(fake.path);
  ASSERT_FALSE(plugin);
  EXPECT_EQ(plugin.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(plugin.error().message, HasSubstr(fake.path + ": its init ends the process by signal 6"));
  EXPECT_EQ(fake.state->inits, 0) << "nothing of it happened here";
}

TEST(Init, OfFasTrakWaitsForNoManagerThatIsNotThere) {
  ::setenv("FILE_BASED_UDS_PATH_PREFIX", "/nowhere", 1);
  Fake fake("v7");
  fake.state->name("FasTrak");
  const auto plugin = Plugin::open(fake.path);
  ASSERT_FALSE(plugin);
  EXPECT_EQ(plugin.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(plugin.error().message, HasSubstr("RxDM does not answer at /nowhere/rxdm_uds_nic_mapping"));
  EXPECT_EQ(fake.state->inits, 0);
  const std::string folder = ::testing::TempDir() + "rxdm_" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  ::setenv("FILE_BASED_UDS_PATH_PREFIX", folder.c_str(), 1);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::ranges::copy(tcpxo_manager_address(), address.sun_path);
  const UniqueFd manager = UniqueFd::of(::socket, AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(manager.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(manager.get(), 0), 0);
  const UniqueFd other = UniqueFd::of(::socket, AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::connect(other.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_TRUE(Plugin::open(fake.path)) << "a manager whose queue is full is there";
  EXPECT_EQ(fake.state->inits, 1);
  std::filesystem::remove_all(folder);
  ::unsetenv("FILE_BASED_UDS_PATH_PREFIX");
}

TEST(Init, ThatFailsBesideNcclIsThatOfAPrivateCopy) {
  const auto open = [](const std::string& path) { return Plugin::open(path); };
  Fake alone("v7");
  alone.state->init_code = 3;
  EXPECT_FALSE(open(alone.path)) << "nobody else has it";
  const std::string nccl = std::string(FAKE_PLUGIN_FOLDER) + "/libnccl_net_fake_nccl.so";
  void* const loaded = ::dlopen(nccl.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(loaded, nullptr) << ::dlerror();
  Fake held("v7");
  held.state->init_code = 3;  // as the second init of GPUDirect-TCPX
  held.state->device_count = 7;
  const auto plugin = open(held.path);
  ASSERT_TRUE(plugin) << plugin.error().message;
  EXPECT_EQ((*plugin)->devices()->size(), 1u) << "has its own data";
  EXPECT_EQ((*plugin)->path(), held.path);
  EXPECT_EQ(open(held.path).value_or(nullptr), *plugin) << "is made once";
  ::dlclose(loaded);
}

TEST_P(EveryVersion, IsProbedAndReadByItsOwnTypes) {
  const auto plugin = Plugin::open(fake_.path);
  ASSERT_TRUE(plugin) << plugin.error().message;
  EXPECT_EQ((*plugin)->version(), GetParam());
  EXPECT_EQ((*plugin)->name(), "Fake");
  const auto devices = (*plugin)->devices();
  ASSERT_TRUE(devices) << devices.error().message;
  ASSERT_EQ(devices->size(), 1u);
  const Properties& properties = (*devices)[0].properties;
  EXPECT_EQ(properties.name, "fake0");
  EXPECT_EQ(properties.pci_path, "");
  EXPECT_EQ(properties.guid, 77u);
  EXPECT_EQ(properties.pointer_support, 1);
  EXPECT_EQ(properties.speed, 200000);
  EXPECT_EQ(properties.port, 3);
  EXPECT_EQ(properties.latency, 1.5f);
  EXPECT_EQ(properties.max_comms, 5);
  EXPECT_EQ(properties.max_receives, 1);
  EXPECT_FALSE(properties.unpacks());
}

TEST_P(EveryVersion, CarriesCallsInBothDirections) {
  const auto plugin = Plugin::open(fake_.path);
  ASSERT_TRUE(plugin) << plugin.error().message;
  const Device device = *(*plugin)->device(0);
  std::vector<std::byte> memory(100);
  {
    auto listener = Listener::open(*plugin, device);
    ASSERT_TRUE(listener) << listener.error().message;
    Connector connector(*plugin, device, listener->handle());
    EXPECT_FALSE(connector.poll()->has_value()) << "the fake answers \"not yet\" once";
    EXPECT_FALSE(listener->poll()->has_value());
    auto connected = connector.poll();
    auto accepted = listener->poll();
    ASSERT_TRUE(connected && connected->has_value());
    ASSERT_TRUE(accepted && accepted->has_value());
    EXPECT_FALSE(connector.poll()) << "an attempt that is over must not be polled";
    EXPECT_FALSE(listener->poll());

    SendWindow sends(**connected);
    ReceiveWindow receives(**accepted);
    auto source = register_with(sends.comm(), memory.data(), memory.size(), abi::kPointerHost);
    auto target = register_with(receives.comm().comm, memory.data(), memory.size(), abi::kPointerHost);
    ASSERT_TRUE(source && target);
    EXPECT_EQ(state_.registered, 100u);
    EXPECT_TRUE(*sends.post(memory.data(), 60, *source));
    EXPECT_TRUE(*receives.post(memory.data(), 70, *target));
    EXPECT_EQ(state_.sent, 60u);
    EXPECT_EQ(state_.received, 70u);
    EXPECT_FALSE(sends.post(memory.data(), 101, *source)) << "beyond the registration";
    EXPECT_FALSE(sends.post(memory.data(), 10, *target)) << "another comm's registration";
    EXPECT_TRUE(*sends.poll());
    EXPECT_TRUE(receives.poll()->has_value());
    EXPECT_TRUE(receives.consume());
    EXPECT_FALSE(receives.consume()) << "nothing has arrived";
    EXPECT_EQ(state_.consumed, 0) << "only receives of UNPACK comms are consumed";
  }
  EXPECT_EQ(state_.deregistered, 2);
  EXPECT_EQ(state_.closed, 3);
}

TEST_P(EveryVersion, FlushesWhatCameIntoCudaMemory) {
  auto [sends, receives] = connect();
  std::byte memory[8];
  auto host = register_with(receives.comm().comm, memory, sizeof memory, abi::kPointerHost);
  auto cuda = register_with(receives.comm().comm, memory, sizeof memory, abi::kPointerCuda);
  const auto arrives = [&](const MemoryHandle& handle) {
    EXPECT_TRUE(*receives.post(memory, 8, handle));
    return receives.poll()->has_value();
  };
  EXPECT_TRUE(arrives(*host));
  EXPECT_EQ(state_.flushed, 0);
  EXPECT_TRUE(arrives(*cuda)) << "no request: there is nothing to wait for";
  EXPECT_EQ(state_.flushed, 1);
  state_.flushes_pending = 2;
  EXPECT_FALSE(arrives(*cuda));
  EXPECT_FALSE(receives.poll()->has_value());
  EXPECT_TRUE(receives.poll()->has_value());
  EXPECT_EQ(state_.flushed, 2) << "once a receive";
}

TEST_P(EveryVersion, NeverPostsASeventeenthRequest) {
  auto [sends, receives] = connect();
  std::byte memory[8];
  auto source = register_with(sends.comm(), memory, sizeof memory, abi::kPointerHost);
  auto target = register_with(receives.comm().comm, memory, sizeof memory, abi::kPointerHost);
  for (std::size_t count = 0; count < kMaxRequests; ++count) {
    EXPECT_TRUE(*sends.post(memory, 8, *source));
    EXPECT_TRUE(*receives.post(memory, 8, *target));
  }
  EXPECT_FALSE(*sends.post(memory, 8, *source));
  EXPECT_TRUE(receives.poll()->has_value());
  EXPECT_FALSE(*receives.post(memory, 8, *target)) << "arrived is not yet consumed";
  EXPECT_TRUE(receives.consume());
  EXPECT_TRUE(*receives.post(memory, 8, *target));
}

TEST_P(EveryVersion, RefusesSizesThatItCannotCarry) {
  const auto plugin = Plugin::open(fake_.path);
  ASSERT_TRUE(plugin);
  Net& net = (*plugin)->net();
  const std::size_t huge = std::size_t{3} << 30;
  void* pointer = nullptr;
  EXPECT_EQ(net.register_memory(&pointer, &pointer, huge, 1, &pointer) == abi::kSuccess, GetParam() >= 8);
  EXPECT_EQ(net.isend(&pointer, &pointer, huge, 0, &pointer, &pointer) == abi::kSuccess, GetParam() >= 9);
  EXPECT_EQ(net.irecv(&pointer, &pointer, huge, 0, &pointer, &pointer) == abi::kSuccess, GetParam() >= 9);
}

TEST_P(EveryVersion, WorksWithoutOptionalMembers) {
  state_.leave_out_optional = true;
  const auto plugin = Plugin::open(fake_.path);
  ASSERT_TRUE(plugin) << plugin.error().message;
  EXPECT_FALSE((*plugin)->net().has_consumed());
  EXPECT_FALSE((*plugin)->net().has_flush());
}

TEST_P(EveryVersion, NamesTheMemberThatIsMissing) {
  state_.leave_out_test = true;
  const auto plugin = Plugin::open(fake_.path);
  ASSERT_FALSE(plugin);
  EXPECT_THAT(plugin.error().message, HasSubstr("leaves test of its " + version() + " table null"));
}

TEST_P(EveryVersion, SaysThatInitFailed) {
  state_.init_code = 3;
  const auto plugin = Plugin::open(fake_.path);
  ASSERT_FALSE(plugin);
  EXPECT_THAT(plugin.error().message, HasSubstr("init of " + fake_.path + ": internal error (3)"));
}

TEST_P(EveryVersion, NoDeviceIsAnAnswerWithAReason) {
  state_.device_count = 0;
  const auto plugin = Plugin::open(fake_.path);
  ASSERT_TRUE(plugin);
  const auto devices = (*plugin)->devices();
  ASSERT_FALSE(devices);
  EXPECT_EQ(devices.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(devices.error().message, HasSubstr("reports no device"));
  EXPECT_FALSE((*plugin)->device(0));
}

TEST_P(EveryVersion, ANamelessDeviceHasALabel) {
  state_.device_count = 2;
  const auto plugin = Plugin::open(fake_.path);
  ASSERT_TRUE(plugin);
  EXPECT_EQ((*plugin)->device(1)->label(), "device 1");
  EXPECT_EQ((*plugin)->device(0)->label(), "fake0");
}

TEST_P(EveryVersion, IsInitialisedOnce) {
  ASSERT_TRUE(Plugin::open(fake_.path));
  const int before = state_.inits;
  ASSERT_TRUE(Plugin::open(fake_.path));
  EXPECT_EQ(state_.inits, before);
}

TEST(Plugin, SaysThatThereIsNoFile) {
  const auto plugin = Plugin::open("/nowhere/libnccl-net.so");
  ASSERT_FALSE(plugin);
  EXPECT_EQ(plugin.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(plugin.error().message, HasSubstr("/nowhere/libnccl-net.so"));
}

TEST(Plugin, TriesTheNamesThatNcclTries) {
  const auto plugin = Plugin::open("first_missing,second_missing");
  ASSERT_FALSE(plugin);
  for (const char* tried : {"libnccl-net-first_missing.so", "libnccl-net-second_missing.so"}) {
    EXPECT_THAT(plugin.error().message, HasSubstr(tried));
  }
  EXPECT_THAT(Plugin::open("none").error().message, HasSubstr("set to none"));
}

TEST(Plugin, ALibraryWithoutTheSymbolIsNoPlugin) {
  const auto plugin = Plugin::open("libc.so.6");
  ASSERT_FALSE(plugin);
  EXPECT_THAT(plugin.error().message, HasSubstr("is no NCCL net plugin"));
}

TEST(Plugin, AnUnknownVersionIsNamed) {
  const auto plugin = Plugin::open(fake_path("unknown"));
  ASSERT_FALSE(plugin);
  EXPECT_THAT(plugin.error().message, HasSubstr("has ncclNetPlugin_v13 only"));
}

TEST(Log, AFloodOfOneLineIsHeldBack) {
  std::vector<std::string> lines;
  set_log_level(LogLevel::kWarning);
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  for (int count = 0; count < 10000; ++count) {
    route_log(abi::kLogWarn, abi::kLogNet, "here", 1, "requested receive %d", count);
    route_log(abi::kLogInfo, abi::kLogNet, "here", 1, "not wanted %d", count);
  }
  route_log(abi::kLogWarn, abi::kLogNet, "here", 1, "another %s", "line");
  set_log_sink(nullptr);
  EXPECT_THAT(lines.size(), ::testing::Lt(100u));
  EXPECT_EQ(lines.front(), "net plugin: requested receive 0");
  EXPECT_EQ(lines.back(), "net plugin: another line");
}

INSTANTIATE_TEST_SUITE_P(Abi, EveryVersion, ::testing::Range(5, 13));

}  // namespace
}  // namespace p2p::nccl_net
