// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A subscriber against a publisher whose deltas are wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "delta.h"
#include "holding.h"
#include "p2p/digest.h"
#include "p2p/weights/subscriber.h"
#include "support/byte_tensor.h"

namespace p2p::weights {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::uint64_t kChunk = 4096, kChunks = 4;

Endpoint loopback() {
  Options options = Options::from_environment().value();
  options.listen_address = "127.0.0.1";
  return std::move(Endpoint::create(options).value());
}

/// Publishes versions for one demand, with the deltas it is given.
class Forger : public Node {
 public:
  Forger() : Node(loopback()) { start(); }
  ~Forger() override { stop(); }

  void publish(std::uint64_t version, std::uint64_t base, std::vector<std::byte> bytes,
               const std::string& delta) {
    const std::lock_guard lock(mutex_);
    Publication& made = publications_[version];
    made.bytes = std::move(bytes);
    made.offer = {{version, 7, 0}, {base, base == 0 ? 0U : 7U, 0}};
    const Manifest owned = byte_tensor(made.bytes);
    const auto demand = Demand::make(owned, {}, kChunk);
    made.lent =
        std::move(Lent::make(endpoint(), gpu_regions(),
                             {{0, reinterpret_cast<std::uint64_t>(made.bytes.data()), made.bytes.size()}})
                      .value());
    made.table =
        std::move(LentTable::make(endpoint(), OwnedTable::encode(owned, made.lent.descriptors())).value());
    const Key key{version, 7, digest_of(demand->encode())};
    made.holding = std::make_unique<Holding>(*this, key, *demand, made.table->at());
    made.holding->give_deltas();
    made.holding->learn(self());
    for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) {
      made.holding->add(chunk, digest(std::span(made.bytes).subspan(chunk * kChunk, kChunk)), delta);
    }
    send_all(made.offer);
  }

 private:
  struct Publication {
    Offer offer;
    std::vector<std::byte> bytes;
    Lent lent;
    std::unique_ptr<LentTable> table;
    std::unique_ptr<Holding> holding;
  };

  void on_open(const LinkPtr& link) override {
    for (const auto& [version, made] : publications_) send(link, made.offer);
  }
  void on_lost(const LinkPtr&) override {}
  void on_message(const LinkPtr& link, Message message) override {
    const Key key = std::visit([](const auto& kind) { return kind.key; }, message);
    const auto found = publications_.find(key.version);
    if (found == publications_.end()) return;
    if (std::holds_alternative<Join>(message)) found->second.holding->admit(link);
    if (std::holds_alternative<Follow>(message)) found->second.holding->follow(link);
  }
  void tell(Samples& /*samples*/) override {}
  bool step() override { return false; }

  std::map<std::uint64_t, Publication> publications_;
};

Progress stage(Subscriber& subscriber, std::uint64_t version, std::vector<std::byte>& into, bool in_place) {
  StageOptions options;
  Progress progress;
  options.in_place = in_place;
  options.timeout = 60s;
  options.progress = [&](const Progress& now) { return progress = now, true; };
  const Status staged = subscriber.stage(version, byte_tensor(into), options);
  EXPECT_TRUE(staged) << staged.error().message;
  return progress;
}

TEST(ForgedDelta, IsRefusedAndTheChunkComesWhole) {
  Forger forger;
  SubscriberOptions options;
  options.endpoint.listen_address = "127.0.0.1";
  options.publishers = {"127.0.0.1:" + std::to_string(forger.self().port)};
  options.chunk_bytes = kChunk;
  std::vector<std::byte> a(kChunk * kChunks), b(a.size());
  auto subscriber = std::move(Subscriber::create(options).value());
  std::uint64_t version = 1;
  forger.publish(version, 0, a, "");
  stage(subscriber, version, a, false);
  const std::string forged[] = {
      std::string("\x01\x00\xff\xff\xff\xff\xffz", 8),  // points beyond the chunk
      std::string("\x01\x00\x05z", 4),                  // makes other bytes
      std::string("\x01\x00\x05", 3),                   // is cut off
      std::string("\x03\x00", 2),                       // has no grid
      std::string(kChunk, '\x01'),                      // is more than half of it
  };
  for (const std::string& delta : forged) {
    for (const bool in_place : {false, true}) {
      ASSERT_TRUE(subscriber.commit());
      const std::uint64_t base = version++;
      forger.publish(version, base, std::vector<std::byte>(a.size(), static_cast<std::byte>(version)), delta);
      if (!in_place) a.swap(b);
      const Progress row = stage(subscriber, version, a, in_place);
      EXPECT_EQ(row.wrong_digests, delta.size() > kChunk / 2 ? 0 : kChunks) << version;
      EXPECT_EQ(row.from_deltas, 0);
      EXPECT_EQ(row.bytes, a.size());
      EXPECT_THAT(row.no_delta, HasSubstr(delta.size() > kChunk / 2 ? "less than half" : "is wrong"));
      EXPECT_EQ(a, std::vector<std::byte>(a.size(), static_cast<std::byte>(version)));
    }
  }
}

}  // namespace
}  // namespace p2p::weights
