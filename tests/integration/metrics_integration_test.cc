// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "p2p/metrics.h"
#include "support/eventually.h"
#include "support/peer.h"

namespace p2p::testing::metrics {
namespace {

using ::testing::HasSubstr;

Options on_loopback() { return EndpointPlan{}.options(); }

/// Two endpoints of this process with a connection and 64 KiB each.
struct Meeting {
  explicit Meeting(const Options& options)
      : left(Endpoint::create(options).value()), right(Endpoint::create(options).value()) {
    connection = left.connect(right.address(), right.port(), kLimit).value();
    source = left.register_memory(out.data(), out.size()).value();
    target = right.register_memory(into.data(), into.size()).value();
    there = {connection.import_region(target->descriptor()).value(), target->descriptor().address,
             into.size()};
  }

  void write() { EXPECT_TRUE(is_ok(connection.write(source->span(), there).wait(kLimit))); }
  void read() { EXPECT_TRUE(is_ok(connection.read(source->span(), there).wait(kLimit))); }

  std::vector<char> out = std::vector<char>(64 << 10);
  std::vector<char> into = std::vector<char>(64 << 10);
  Endpoint left;
  Endpoint right;
  Connection connection;
  std::optional<MemoryRegion> source;
  std::optional<MemoryRegion> target;
  RemoteSpan there;
};

std::string labels(const Endpoint& endpoint) {
  return "endpoint=\"" + endpoint.address() + " " + std::to_string(endpoint.port()) + "\"";
}

std::uint64_t total(const Latency& row) {
  return std::accumulate(row.counts.begin(), row.counts.end(), std::uint64_t{0});
}

TEST(MetricsTest, NameTheConnectionAndEndAsTheyMust) {
  Meeting both(on_loopback());
  EXPECT_TRUE(is_ok(both.connection.notify("x").wait(kLimit)));
  const std::string text = openmetrics(both.left);
  const std::string whole = labels(both.left);
  EXPECT_THAT(text, HasSubstr("# TYPE p2p_connection_notifications_sent counter\n"));
  EXPECT_THAT(text, HasSubstr("p2p_endpoint_notifications_sent_total{" + whole + "} 1\n"));
  EXPECT_THAT(text, HasSubstr("p2p_connection_notifications_sent_total{" + whole +
                              R"(,connection="0",peer="127.0.0.1 )"));
  EXPECT_THAT(text, HasSubstr("p2p_connections{" + whole + "} 1\n"));
  EXPECT_THAT(text, HasSubstr("p2p_registered_bytes{" + whole + "} 65536\n"));
  EXPECT_THAT(text, HasSubstr("p2p_registered_regions{" + whole + "} 1\n"));
  EXPECT_THAT(text, HasSubstr("\n# TYPE p2p_channels gauge\n"));
  EXPECT_THAT(text, HasSubstr("\n# TYPE p2p_channels_encrypted gauge\n"));
  EXPECT_THAT(text, HasSubstr("p2p_connections_waiting{" + whole + "} 0\n"));
  EXPECT_TRUE(text.ends_with("# EOF\n"));
  both.source.reset();
  EXPECT_THAT(openmetrics(both.left), HasSubstr("p2p_registered_bytes{" + whole + "} 0\n"));
  // The peer's queue gets it a moment after its first words may travel.
  const std::string waiting = "p2p_connections_waiting{" + labels(both.right) + "} 1\n";
  EXPECT_TRUE(eventually([&] { return openmetrics(both.right).find(waiting) != std::string::npos; }));
}

TEST(MetricsTest, LatenciesAreThoseOfTheTransfers) {
  Meeting both(on_loopback());
  EXPECT_THAT(both.connection.latencies(), ::testing::IsEmpty());
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 3; ++i) both.write();
  both.read();
  const auto took = std::chrono::steady_clock::now() - start;
  const std::string transport = both.connection.routes().front().transport;
  for (const auto& rows : {both.connection.latencies(), both.left.latencies()}) {
    ASSERT_EQ(rows.size(), 2U);
    EXPECT_EQ(total(rows[0]), 3U);
    EXPECT_EQ(total(rows[1]), 1U);
    EXPECT_FALSE(rows[0].reads);
    EXPECT_TRUE(rows[1].reads);
    for (const Latency& row : rows) {
      EXPECT_EQ(row.transport, transport);
      EXPECT_GT(row.sum.count(), 0);
    }
    EXPECT_LE(rows[0].sum + rows[1].sum, took);
  }
  EXPECT_THAT(openmetrics(both.left),
              HasSubstr("p2p_connection_transfer_seconds_count{" + labels(both.left) +
                        R"(,connection="0",peer="127.0.0.1 )" + std::to_string(both.right.port()) +
                        "\",transport=\"" + transport + "\",direction=\"write\"} 3\n"));
  // They outlive the connection.
  EXPECT_TRUE(is_ok(both.connection.close(kLimit)));
  const auto rows = both.left.latencies();
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(total(rows[0]), 3U);
}

TEST(MetricsTest, EachTransportTellsWhatItMoved) {
  Meeting both(on_loopback());
  EXPECT_THAT(both.connection.stats().by_transport, ::testing::IsEmpty());
  for (int i = 0; i < 3; ++i) both.write();
  both.read();
  const std::string transport = both.connection.routes().front().transport;
  EXPECT_TRUE(is_ok(both.connection.close(kLimit)));
  for (const auto& stats : {both.connection.stats(), both.left.stats()}) {  // it outlives the connection
    ASSERT_EQ(stats.by_transport.size(), 1U);
    EXPECT_EQ(stats.by_transport[0].transport, transport);
    EXPECT_EQ(stats.by_transport[0].written, 3 * both.out.size());
    EXPECT_EQ(stats.by_transport[0].read, both.out.size());
    EXPECT_EQ(stats.bytes_written, 3 * both.out.size());
    EXPECT_EQ(stats.bytes_read, both.out.size());
  }
  EXPECT_THAT(both.right.stats().by_transport, ::testing::IsEmpty()) << "the other side moved nothing";
  EXPECT_THAT(openmetrics(both.left),
              HasSubstr("p2p_endpoint_transport_bytes_total{" + labels(both.left) + ",transport=\"" +
                        transport + "\",direction=\"write\"} " + std::to_string(3 * both.out.size()) + "\n"));
}

TEST(MetricsTest, OneOfEightShortTransfersStandsForAll) {
  Meeting both(on_loopback());
  const LocalSpan local = both.source->span(0, 64);
  for (int i = 0; i < 24; ++i) {
    EXPECT_TRUE(
        is_ok(both.connection.write(local, {both.there.region, both.there.address, 64}).wait(kLimit)));
  }
  EXPECT_EQ(total(both.connection.latencies().at(0)), 24U);
}

}  // namespace
}  // namespace p2p::testing::metrics
