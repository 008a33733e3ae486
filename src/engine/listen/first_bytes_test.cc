// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/listen/first_bytes.h"

#include <gtest/gtest.h>

#include "wire/encode.h"

namespace p2p::engine {
namespace {

using Kind = FirstBytes::Kind;

Bytes stream_prefix(std::uint8_t fill) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.put(StreamPort::kMagic);
  out.put(std::uint16_t{3});
  StreamPort::Token token;
  token.fill(std::byte{fill});
  out.put(ByteView(token));
  return bytes;
}

// As a socket that holds so many bytes has it: each answer asks for more, or is the last.
void expect_each_prefix(const Bytes& bytes, Kind kind) {
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    const FirstBytes first = FirstBytes::read(ByteView(bytes).first(size));
    if (first.kind == Kind::kUndecided) {
      EXPECT_GT(first.needed, size);
      EXPECT_LE(first.needed, FirstBytes::kMost);
    } else {
      EXPECT_EQ(first.kind, kind) << size;
    }
  }
  EXPECT_EQ(FirstBytes::read(bytes).kind, kind);
}

TEST(FirstBytes, KnowsAHello) { expect_each_prefix(wire::encode(wire::Hello{}), Kind::kControl); }

TEST(FirstBytes, KnowsAStreamAndItsToken) {
  expect_each_prefix(stream_prefix(7), Kind::kStream);
  Bytes greeting = stream_prefix(7);
  greeting.resize(greeting.size() + 32);
  EXPECT_EQ(FirstBytes::read(greeting).token.front(), std::byte{7});
  EXPECT_EQ(FirstBytes::read(greeting).token.back(), std::byte{7});
}

TEST(FirstBytes, KnowsASessionThatGoesOnAndItsToken) {
  wire::Resume resume;
  resume.token.fill(std::byte{7});
  const Bytes frame = wire::encode(resume);
  expect_each_prefix(frame, Kind::kResume);
  EXPECT_EQ(FirstBytes::read(frame).token, resume.token);
}

TEST(FirstBytes, KnowsNothingElse) {
  expect_each_prefix(wire::encode(wire::Bye{"before a hello"}), Kind::kForeign);
  for (const char* text :
       {"GET / HTTP/1.1\r\nHost: example\r\n\r\n", "SSH-2.0-something-or-other",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and so on, for longer than a prefix"}) {
    const ByteView bytes = as_bytes(std::string_view(text, 24));
    EXPECT_EQ(FirstBytes::read(bytes).kind, Kind::kForeign) << text;
  }
  Bytes longer = wire::encode(wire::Hello{});
  longer[1] = std::byte{4};  // a frame of more than 1 KiB
  EXPECT_EQ(FirstBytes::read(longer).kind, Kind::kForeign);
  EXPECT_EQ(FirstBytes::read(Bytes(FirstBytes::kMost)).kind, Kind::kForeign);
}

}  // namespace
}  // namespace p2p::engine
