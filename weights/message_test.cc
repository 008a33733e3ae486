// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "message.h"

#include <gtest/gtest.h>

#include <random>

#include "tables.h"

namespace p2p::weights {
namespace {

const Key kKey{3, 0x1122334455667788, 9};

std::vector<Message> one_of_each() {
  RegionDescriptor region;
  region.address = 4096, region.size = 100, region.region = RegionId{1};
  return {Offer{kKey, {2, 5, 0}},
          Withdraw{kKey},
          Join{kKey, {region, "demand"}},
          Refuse{kKey, "no"},
          Tell{kKey, {7, "10.0.0.1", 4000, 2}},
          Follow{kKey},
          Layout{kKey, {region, ""}, true},
          Delta{kKey, 7, region, 4100, 96},
          Have{kKey, {{1, 2}, {3, 4}}},
          Done{kKey},
          Took{kKey, 5000}};
}

TEST(Message, IsReadAsWritten) {
  for (const Message& message : one_of_each()) {
    const std::string bytes = encode(message);
    const auto read = decode(bytes);
    ASSERT_TRUE(read) << message.index();
    EXPECT_EQ(read->index(), message.index());
    EXPECT_EQ(encode(*read), bytes);
  }
}

TEST(Message, ThatIsCutOffOrLongerIsRefused) {
  for (const Message& message : one_of_each()) {
    const std::string bytes = encode(message);
    for (std::size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(decode(bytes.substr(0, size)));
    EXPECT_FALSE(decode(bytes + '\0'));
  }
  EXPECT_FALSE(decode(std::string(25, '\xff')));
}

TEST(Message, NoteIsReadAsWritten) {
  const std::string note = encode_note("10.0.0.1", 4000);
  EXPECT_EQ(decode_note(note), std::pair(std::string("10.0.0.1"), std::uint16_t{4000}));
  for (std::size_t size = 0; size < note.size(); ++size) EXPECT_FALSE(decode_note(note.substr(0, size)));
}

TEST(Message, NoteOfAnotherReleaseIsToldFromAStrangers) {
  std::string other = encode_note("10.0.0.1", 4000);
  --other[std::string_view("uccl.weights ").size()];
  EXPECT_FALSE(decode_note(other));
  EXPECT_NE(why_refused(other).find("all members need the same"), std::string::npos);
  EXPECT_NE(why_refused("").find("no publisher or subscriber"), std::string::npos);
}

std::vector<std::string> tables() {
  Manifest manifest;
  const std::vector<std::uint64_t> shape{4, 6}, offset{1, 0}, size{2, 6};
  const auto tensor = manifest.add_tensor("w", {"bfloat16", 2}, shape);
  EXPECT_TRUE(manifest.add_shard(*tensor, {1, 4096, offset, size, {}}));
  RegionDescriptor region;
  region.address = 4096, region.size = 24, region.region = RegionId{1};
  return {Demand::make(manifest, {{"w", "v", {0, 0}, {}, {}}}, 8)->encode(),
          OwnedTable::encode(manifest, {region}), HeldTable::encode({{0, 4096, 24}}, {region})};
}

// What is read of any bytes is a table or an error; sanitizers see the rest.
bool reads(std::size_t kind, std::string_view bytes) {
  if (kind == 0) return Demand::decode(bytes).has_value();
  if (kind == 1) return OwnedTable::decode(bytes).has_value();
  return HeldTable::decode(bytes, 24).has_value();
}

TEST(Tables, ThatAreCutOffOrDamagedDoNoHarm) {
  const auto whole = tables();
  std::mt19937 dice(1);
  for (std::size_t kind = 0; kind < whole.size(); ++kind) {
    ASSERT_TRUE(reads(kind, whole[kind])) << kind;
    for (std::size_t size = 0; size < whole[kind].size(); ++size) {
      EXPECT_FALSE(reads(kind, std::string_view(whole[kind]).substr(0, size))) << kind << " " << size;
    }
    for (int round = 0; round < 20000; ++round) {
      std::string damaged = whole[kind];
      damaged[dice() % damaged.size()] = static_cast<char>(dice());
      damaged[dice() % damaged.size()] = static_cast<char>(dice());
      (void)reads(kind, damaged);
    }
  }
}

TEST(Demand, IsOneOfAllWhoWantTheSame) {
  const auto encoded = [](std::uint64_t address, std::uint32_t rank) {
    Manifest manifest;
    const std::vector<std::uint64_t> shape{4}, offset{0};
    const auto tensor = manifest.add_tensor("w", {"bfloat16", 2}, shape);
    EXPECT_TRUE(manifest.add_shard(*tensor, {rank, address, offset, shape, {}}));
    return Demand::make(manifest, {}, 0)->encode();
  };
  EXPECT_EQ(encoded(4096, 0), encoded(8192, 5));
}

}  // namespace
}  // namespace p2p::weights
