// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What an application may do in a callback.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "p2p/log.h"
#include "p2p/metrics.h"
#include "support/eventually.h"
#include "support/peer.h"

namespace p2p::testing::callback {
namespace {

class CallbackTest : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr std::size_t kSize = std::size_t{8} << 20;

  static std::shared_ptr<Endpoint> make(const char* transport) {
    return std::make_shared<Endpoint>(make_endpoint({.transport = transport}));
  }

  CallbackTest() {
    connection_ = connector_->connect("127.0.0.1", acceptor_->port(), kLimit).value();
    accepted_ = acceptor_->accept(kLimit).value();
    source_.emplace(*connector_, kSize);
    target_.emplace(*acceptor_, kSize);
    const RegionDescriptor descriptor = target_->region.descriptor();
    there_ = {connection_.import_region(descriptor).value(), descriptor.address, kSize};
  }

  Transfer write() { return connection_.write(source_->span(0, kSize), there_); }

  std::shared_ptr<Endpoint> acceptor_ = make(GetParam());
  std::shared_ptr<Endpoint> connector_ = make(GetParam());
  Connection connection_;
  Connection accepted_;
  std::optional<OwnRegion> source_;
  std::optional<OwnRegion> target_;
  RemoteSpan there_;
};

/// Takes over an endpoint, and lets go of it when it is told to.
std::shared_ptr<std::shared_ptr<Endpoint>> last_of(std::shared_ptr<Endpoint>& endpoint) {
  return std::make_shared<std::shared_ptr<Endpoint>>(std::move(endpoint));
}

TEST_P(CallbackTest, TheLastReferenceIsDroppedWhenATransferIsDone) {
  const auto last = last_of(connector_);
  std::promise<void> dropped;
  write().on_done([&] {
    last->reset();
    dropped.set_value();
  });
  EXPECT_EQ(dropped.get_future().wait_for(kLimit), std::future_status::ready);
  EXPECT_TRUE(eventually([&] { return !connection_.status(); })) << "it ends all the same";
  EXPECT_TRUE(eventually([&] { return !accepted_.status(); }));
}

TEST_P(CallbackTest, TheLastReferenceIsDroppedByAWaitingCaller) {
  const auto last = last_of(connector_);
  const auto small = connection_.write(source_->span(0, 64), {there_.region, there_.address, 64});
  small.on_done([&] { last->reset(); });
  EXPECT_TRUE(is_ok(small.wait(kLimit)));
  EXPECT_TRUE(eventually([&] { return !connection_.status(); }));
}

TEST_P(CallbackTest, TheLastReferenceIsDroppedWhenTheConnectionEnds) {
  const auto last = last_of(connector_);
  std::promise<void> dropped;
  connection_.on_change([&, once = std::make_shared<std::atomic<bool>>()] {
    if (once->exchange(true)) return;
    last->reset();
    dropped.set_value();
  });
  static_cast<void>(accepted_.close(std::chrono::nanoseconds(0)));
  EXPECT_EQ(dropped.get_future().wait_for(kLimit), std::future_status::ready);
}

TEST_P(CallbackTest, WhatItThrowsIsLoggedAndHarmsNothing) {
  std::mutex mutex;
  std::string said;
  set_log_sink([&](LogLevel, std::string_view line) {
    const std::lock_guard lock(mutex);
    said += line;
  });
  const auto transfer = write();
  std::promise<void> next;
  transfer.on_done([] { throw std::runtime_error("from a callback"); });
  transfer.on_done([] { throw 1; });
  transfer.on_done([&] { next.set_value(); });
  EXPECT_TRUE(is_ok(transfer.wait(kLimit)));
  EXPECT_EQ(next.get_future().wait_for(kLimit), std::future_status::ready) << "others run";
  set_log_sink(nullptr);
  const std::lock_guard lock(mutex);
  EXPECT_THAT(said, ::testing::HasSubstr("threw an exception, which is ignored: from a callback"));
  EXPECT_TRUE(is_ok(write().wait(kLimit)));
}

INSTANTIATE_TEST_SUITE_P(Transports, CallbackTest, ::testing::Values("tcp", "cma", "loopback"),
                         [](const auto& one) { return std::string(one.param); });

// A peer within its bounds makes the process run out of memory: the connection ends.
TEST(MemoryEndTest, CostsTheConnectionAndNotTheProcess) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer takes more addresses than are left";
  for (const char* const transport : {"tcp", "cma"}) {
    Pair pair({.transport = transport});
    const std::string payload(30'000, 'x');
    pair.peer.number(fmt::format("limit_memory {}", 16 << 20));
    for (int i = 0; i != 4000 && pair.connection.status(); ++i) {
      static_cast<void>(pair.connection.notify(payload));
    }
    EXPECT_TRUE(eventually([&] { return !pair.connection.status(); })) << transport;
    const auto there = pair.peer.call(fmt::format("status {}", pair.at_peer));
    ASSERT_FALSE(there) << transport;
    EXPECT_THAT(there.error().message, ::testing::HasSubstr("out of memory"));
    pair.peer.number("limit_memory 0");
    EXPECT_TRUE(is_ok(status_of(pair.endpoint.connect("127.0.0.1", pair.peer.port(), kLimit))));
  }
}

}  // namespace
}  // namespace p2p::testing::callback
