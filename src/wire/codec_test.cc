// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "wire/decode.h"
#include "wire/encode.h"
#include "wire/fields.h"

namespace p2p::wire {
namespace {

/// Draws every field of a message.
class Draw {
 public:
  explicit Draw(std::mt19937_64& random) : random_(random) {}

  template <class... T>
  void operator()(T&... values) {
    (draw(values), ...);
  }

 private:
  template <std::integral T>
  void draw(T& value) {
    value = static_cast<T>(random_());
  }
  void draw(std::byte& value) { value = static_cast<std::byte>(random_()); }
  void draw(std::string& text) {
    text.resize(random_() % 40);
    for (char& c : text) c = static_cast<char>(random_());
  }
  void draw(PeerText& text) {
    std::string raw;
    draw(raw);
    text = raw;
  }
  template <std::size_t kSize>
  void draw(std::array<std::byte, kSize>& bytes) {
    for (std::byte& byte : bytes) draw(byte);
  }
  template <class T>
  void draw(std::vector<T>& values) {
    values.resize(random_() % 6);
    for (T& value : values) draw(value);
  }
  template <Fielded T>
  void draw(T& value) {
    fields(value, *this);
  }

  std::mt19937_64& random_;
};

template <std::size_t... kIndex>
std::vector<Message> one_of_each(std::mt19937_64& random, std::index_sequence<kIndex...>) {
  std::vector<Message> messages;
  (messages.emplace_back(std::in_place_index<kIndex>), ...);
  for (Message& message : messages) std::visit([&](auto& body) { fields(body, Draw(random)); }, message);
  return messages;
}

std::vector<Message> one_of_each(std::mt19937_64& random) {
  return one_of_each(random, std::make_index_sequence<std::variant_size_v<Message>>());
}

ByteView contents(const Bytes& frame) { return ByteView(frame).subspan(kLengthBytes); }

/// Stands for a value of any type, to count the members of an aggregate.
struct Anything {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};

template <class T, class... Some>
constexpr std::size_t members() {
  if constexpr (requires { T{Some{}..., Anything{}}; }) {
    return members<T, Some..., Anything>();
  } else {
    return sizeof...(Some);
  }
}

template <class T>
void expect_all_listed(T value) {
  std::size_t listed = 0;
  fields(value, [&](auto&... field) { listed = sizeof...(field); });
  EXPECT_EQ(listed, members<T>()) << typeid(T).name();
}

TEST(Fields, ListsEveryMemberOfEveryMessage) {
  std::mt19937_64 random(1);
  for (const Message& message : one_of_each(random)) {
    std::visit([](const auto& body) { expect_all_listed(body); }, message);
  }
  expect_all_listed(TransportStatus{});
  expect_all_listed(ExportedKey{});
  expect_all_listed(ReceiveSpan{});
}

TEST(Codec, RoundTripsEveryMessage) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 200; ++round) {
    for (const Message& message : one_of_each(random)) {
      const Bytes frame = encode(message);
      const auto back = decode(contents(frame));
      ASSERT_TRUE(back) << back.error().message;
      ASSERT_EQ(back->index(), message.index());
      ASSERT_TRUE(*back == message) << name(message);
    }
  }
}

TEST(Codec, WritesTheBytesOfTheWirePage) {
  EXPECT_EQ(encode(RegionRevoke{.revocation = 0x0102030405060708, .region = 0x0a0b0c0d}),
            Bytes({std::byte{14}, std::byte{0}, std::byte{0}, std::byte{0},        // length
                   std::byte{9}, std::byte{0},                                     // type
                   std::byte{8}, std::byte{7}, std::byte{6}, std::byte{5},         // revocation
                   std::byte{4}, std::byte{3}, std::byte{2}, std::byte{1},         //
                   std::byte{13}, std::byte{12}, std::byte{11}, std::byte{10}}));  // region
  EXPECT_EQ(encode(Bye{"ab"}),
            Bytes({std::byte{8}, std::byte{0}, std::byte{0}, std::byte{0}, std::byte{17}, std::byte{0},
                   std::byte{2}, std::byte{0}, std::byte{0}, std::byte{0}, std::byte{'a'}, std::byte{'b'}}));
}

TEST(Codec, TakesTextsOfPeersCutAndClean) {
  const std::string raw = "\x1b[2J\n" + std::string(100000, 'x');
  Bytes frame = encode(Bye{});
  lengthen(frame, static_cast<std::uint32_t>(raw.size()));
  ByteWriter(frame).put(as_bytes(raw));
  const auto bye = decode(contents(frame));
  ASSERT_TRUE(bye) << bye.error().message;
  EXPECT_EQ(std::get<Bye>(*bye).reason, PeerText(raw));
}

// What refuses a stranger's hello is told to one that takes no longer frames.
TEST(Codec, TheLongestGoodbyeFitsAStrangersFrame) {
  EXPECT_LE(encode(Bye{std::string(100000, 'x')}).size(), kStrangerFrameBytes);
}

TEST(Codec, NamesEveryType) {
  EXPECT_EQ(name(Hello{}), "Hello");
  EXPECT_EQ(name(ChannelControl{}), "ChannelControl");
  EXPECT_EQ(name(ReceiveWithdrawn{}), "ReceiveWithdrawn");
  EXPECT_EQ(name(Bye{}), "Bye");
}

TEST(Codec, RefusesContentsCutAnywhere) {
  std::mt19937_64 random(3);
  for (const Message& message : one_of_each(random)) {
    const Bytes frame = encode(message);
    for (std::size_t size = 0; size < contents(frame).size(); ++size) {
      const auto cut = decode(contents(frame).first(size));
      ASSERT_FALSE(cut) << name(message) << " cut to " << size;
      ASSERT_EQ(cut.error().code, ErrorCode::kProtocol);
    }
  }
}

TEST(Codec, RefusesBytesTooMany) {
  std::mt19937_64 random(4);
  for (const Message& message : one_of_each(random)) {
    Bytes frame = encode(message);
    frame.push_back(std::byte{0});
    EXPECT_FALSE(decode(contents(frame))) << name(message);
  }
}

TEST(Codec, RefusesUnknownTypes) {
  constexpr auto kNext = static_cast<std::uint16_t>(std::variant_size_v<Message> + 1);
  for (const std::uint16_t type : {std::uint16_t{0}, kNext, std::uint16_t{255}, std::uint16_t{65535}}) {
    Bytes frame;
    ByteWriter(frame).put(type);
    const auto message = decode(frame);
    ASSERT_FALSE(message) << type;
    EXPECT_NE(message.error().message.find(std::to_string(type)), std::string::npos);
  }
}

TEST(Codec, RefusesCountsThatTheBytesCannotHold) {
  for (const std::uint32_t count : {1U, 2U, 0x10000000U, 0x7fffffffU, 0xffffffffU}) {
    Bytes spans = encode(ReceivePosted{});
    std::copy_n(reinterpret_cast<const std::byte*>(&count), sizeof count, spans.end() - sizeof count);
    EXPECT_FALSE(decode(contents(spans))) << count;
    Bytes text = encode(Bye{});
    std::copy_n(reinterpret_cast<const std::byte*>(&count), sizeof count, text.end() - sizeof count);
    EXPECT_FALSE(decode(contents(text))) << count;
  }
}

TEST(FrameReader, FindsTheMessagesHoweverTheBytesCome) {
  std::mt19937_64 random(5);
  std::vector<Message> sent;
  Bytes stream;
  for (int round = 0; round < 20; ++round) {
    for (Message& message : one_of_each(random)) {
      ByteWriter(stream).put(ByteView(encode(message)));
      sent.push_back(std::move(message));
    }
  }
  for (const std::size_t step : {std::size_t{1}, std::size_t{7}, std::size_t{4096}, stream.size()}) {
    FrameReader reader;
    std::vector<Message> got;
    for (std::size_t at = 0; at < stream.size(); at += step) {
      reader.feed(ByteView(stream).subspan(at, std::min(step, stream.size() - at)));
      for (;;) {
        auto message = reader.next();
        ASSERT_TRUE(message) << message.error().message;
        if (!*message) break;
        got.push_back(std::move(**message));
      }
    }
    EXPECT_EQ(reader.buffered(), 0U);
    EXPECT_TRUE(got == sent) << step;
  }
}

TEST(FrameReader, RefusesALengthBeforeItsBytesCome) {
  for (const std::uint32_t length :
       {0U, 1U, static_cast<std::uint32_t>(kMaxFrameBytes) - 3, 0x7fffffffU, 0xffffffffU}) {
    Bytes header;
    ByteWriter(header).put(length);
    FrameReader reader;
    reader.feed(header);
    const auto message = reader.next();
    ASSERT_FALSE(message) << length;
    EXPECT_EQ(message.error().code, ErrorCode::kProtocol);
    EXPECT_EQ(reader.buffered(), 0U);
    reader.feed(encode(Bye{}));
    EXPECT_FALSE(reader.next()) << "a stream that cannot be followed stays refused";
  }
}

TEST(FrameReader, TakesTheLongestFrame) {
  Notify longest;
  longest.part.resize(kMaxFrameBytes - encode(longest).size(), std::byte{5});
  const Bytes frame = encode(longest);
  ASSERT_EQ(frame.size(), kMaxFrameBytes);
  FrameReader reader;
  reader.feed(frame);
  const auto message = reader.next();
  ASSERT_TRUE(message && *message);
  EXPECT_EQ(std::get<Notify>(**message).part, longest.part);
}

TEST(FrameReader, AppliesANewBoundToTheNextFrame) {
  FrameReader reader(64);
  reader.feed(encode(Bye{}));
  reader.feed(encode(Bye{std::string(100, 'x')}));
  ASSERT_TRUE(reader.next());
  reader.set_max_frame_bytes(kMaxFrameBytes);
  ASSERT_TRUE(reader.next());
  reader.set_max_frame_bytes(64);
  reader.feed(encode(Bye{std::string(100, 'x')}));
  EXPECT_FALSE(reader.next());
}

}  // namespace
}  // namespace p2p::wire
