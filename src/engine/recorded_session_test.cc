// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Plays the peers of tests/support/recorded, which speak earlier versions of the wire, against an endpoint of
// now.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "drivers/crypto/crypto.h"
#include "p2p/endpoint.h"
#include "support/bounds.h"
#include "support/eventually.h"
#include "support/raw_peer.h"

namespace p2p::testing {
namespace {

Bytes from_digits(const std::string& digits) {
  Bytes bytes;
  for (std::size_t at = 0; at + 1 < digits.size(); at += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(digits.substr(at, 2), nullptr, 16)));
  }
  return bytes;
}

bool is_digits(const std::string& word) {
  return word.find_first_not_of("0123456789abcdef") == std::string::npos;
}

using Known = std::map<std::string, Bytes>;

/// Bytes as the record writes them.
Bytes spell(const std::vector<std::string>& words, Known& known) {
  Bytes bytes;
  for (const std::string& word : words) {
    const auto equals = word.find('=');
    if (equals != std::string::npos) known[word.substr(0, equals)] = from_digits(word.substr(equals + 1));
    const Bytes part = is_digits(word) ? from_digits(word) : known.at(word.substr(0, equals));
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  return bytes;
}

/// Whether the bytes are as the pattern says; remembers what that names.
bool matches(ByteView bytes, const std::vector<std::string>& pattern, Known& known) {
  for (const std::string& word : pattern) {
    if (word == "...") return true;
    const auto slash = word.find('/');
    const bool open = word.front() == '?' || slash != std::string::npos;
    const Bytes wanted = open ? Bytes() : is_digits(word) ? from_digits(word) : known.at(word);
    const auto digits = word.substr(slash == std::string::npos ? 1 : slash + 1);
    const std::size_t size = open ? std::stoul(digits) : wanted.size();
    if (bytes.size() < size) return false;
    const ByteView part = bytes.first(size);
    if (!open && !std::ranges::equal(part, wanted)) return false;
    if (slash != std::string::npos) known[word.substr(0, slash)] = Bytes(part.begin(), part.end());
    bytes = bytes.subspan(size);
  }
  return bytes.empty();
}

/// A connection of the recorded peer. Every wait is bounded.
class Line {
 public:
  explicit Line(std::uint16_t port) : peer_(RawPeer::dial(port)) {}

  bool say(ByteView bytes) { return peer_.say(bytes); }

  /// So many bytes; fewer at the end.
  Bytes take(std::size_t size) {
    Bytes bytes(size);
    const auto deadline = std::chrono::steady_clock::now() + RawPeer::kPatience;
    std::size_t have = 0;
    while (have != size && RawPeer::await(peer_.fd(), POLLIN, deadline)) {
      const ssize_t got = ::recv(peer_.fd(), bytes.data() + have, size - have, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) break;
      have += got > 0 ? static_cast<std::size_t>(got) : 0;
    }
    bytes.resize(have);
    return bytes;
  }

 private:
  RawPeer peer_;
};

std::uint32_t number_at(const Bytes& bytes, std::size_t at) {
  return ByteReader(ByteView(bytes).subspan(std::min(at, bytes.size()))).get<std::uint32_t>();
}

class RecordedPeer {
 public:
  RecordedPeer(std::uint16_t port, Known& known) : session_(port), stream_(port), known_(known) {}

  /// One line of the record, but for what the application does.
  void play(const std::string& where, const std::string& direction, const std::vector<std::string>& words) {
    Line& line = where == "session" ? session_ : stream_;
    if (direction == ">") {
      if (words.front() == "proof") prove();
      const Bytes bytes = spell(words, known_);
      if (where == "session" && hellos_.empty()) hellos_ = bytes;
      ASSERT_TRUE(line.say(bytes));
    } else if (where == "opening") {
      ASSERT_TRUE(matches(stream_.take(4 + 2 + 32 + 32), words, known_));
    } else {
      await(where, words);
    }
  }

 private:
  Bytes session_frame() {
    const Bytes length = session_.take(4);
    Bytes frame = session_.take(number_at(length, 0));
    if (!heard_hello_) {
      hellos_.insert(hellos_.end(), length.begin(), length.end());
      hellos_.insert(hellos_.end(), frame.begin(), frame.end());
    }
    heard_hello_ = true;
    return frame;
  }

  Bytes stream_frame() {
    Bytes frame = stream_.take(32);
    const Bytes rest = stream_.take(number_at(frame, 4) + number_at(frame, 8));
    frame.insert(frame.end(), rest.begin(), rest.end());
    return frame;
  }

  /// Frames that say something else may come before: heartbeats, acknowledgements.
  void await(const std::string& where, const std::vector<std::string>& pattern) {
    std::string others;
    for (Bytes frame; !(frame = where == "session" ? session_frame() : stream_frame()).empty();) {
      if (matches(frame, pattern, known_)) return;
      others += "\n";
      for (const std::byte byte : frame) others += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    }
    FAIL() << "it did not come; this did:" << others;
  }

  /// What docs/wire.md says of a stream's proof, where no key is set.
  void prove() {
    const auto secret = crypto::hmac_sha256(as_bytes("p2p hellos"), hellos_);
    Bytes message;
    ByteWriter writer(message);
    writer.put(as_bytes("p2p tcp connector"));
    writer.put(std::uint16_t{3});
    for (const char* name : {"token", "greeting", "answer"}) writer.put(ByteView(known_.at(name)));
    const auto proof = crypto::hmac_sha256(secret, message);
    known_["proof"] = Bytes(proof.begin(), proof.end());
  }

  Line session_;
  Line stream_;
  Known& known_;
  Bytes hellos_;
  bool heard_hello_ = false;
};

class RecordedSession : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr std::size_t kSize = 4096;

  void SetUp() override {
    Options options;
    options.listen_address = "127.0.0.1";
    options.transports = {"tcp"};
    endpoint_.emplace(Endpoint::create(options).value());
    region_.emplace(endpoint_->register_memory(memory_.data(), kSize).value());
    peer_.emplace(endpoint_->port(), known_);
  }

  void play(const std::string& text) {
    std::istringstream line(text);
    std::string where;
    std::string what;
    line >> where >> what;
    if (where == "do") return act(what);
    peer_->play(where, what, {std::istream_iterator<std::string>(line), {}});
  }

  void act(const std::string& what) {
    const std::map<std::string, std::function<void()>> acts{
        {"describe", [&] { describe(); }},
        {"check_write", [&] { EXPECT_EQ(text(0, 16), "recorded write 5"); }},
        {"receive", [&] { transfer_ = connection_.recv(span(64, 8)); }},
        {"check_receive",
         [&] {
           expect_done();
           EXPECT_EQ(text(64, 8), "message5");
         }},
        {"check_notification",
         [&] {
           std::vector<std::string> came;
           EXPECT_TRUE(eventually([&] { return !(came = connection_.take_notifications()).empty(); }));
           EXPECT_EQ(came, std::vector<std::string>{"notified"});
         }},
        {"write", [&] { write(); }},
        {"check_written", [&] { expect_done(); }},
        {"send",
         [&] {
           std::memcpy(memory_.data() + 256, "messageo", 8);
           transfer_ = connection_.send(span(256, 8));
         }},
        {"check_sent", [&] { expect_done(); }},
        {"check_closed",
         [&] {
           peer_.reset();  // both have said it; now it hangs up
           EXPECT_TRUE(eventually([&] { return connection_.state() == ConnectionState::kClosed; }));
           EXPECT_NE(connection_.status().error().message.find("done"), std::string::npos)
               << connection_.status().error().message;
         }},
    };
    acts.at(what)();
  }

  void describe() {
    const auto bytes = region_->descriptor().serialize();
    const auto part = [&](std::size_t at, std::size_t size) {
      return Bytes(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                   bytes.begin() + static_cast<std::ptrdiff_t>(at + size));
    };
    known_["address"] = part(0, 8);
    known_["region"] = part(16, 4);
    known_["key"] = part(24, 16);
    auto accepted = endpoint_->accept(kLimit);
    ASSERT_TRUE(accepted) << accepted.error().message;
    connection_ = *accepted;
    EXPECT_EQ(connection_.peer().note, "recorded");
    EXPECT_EQ(static_cast<std::uint64_t>(connection_.peer().incarnation), 0x1111111111111111U);
  }

  /// To memory that a recorded descriptor tells of.
  void write() {
    RegionDescriptor there{.address = 0x10000, .size = kSize, .place = {}, .region = RegionId{7}};
    there.incarnation = connection_.peer().incarnation;
    for (std::size_t i = 0; i != there.key.size(); ++i) there.key[i] = static_cast<std::byte>(0x40 + i);
    const auto id = connection_.import_region(there);
    ASSERT_TRUE(id) << id.error().message;
    std::memcpy(memory_.data() + 128, "recorded write o", 16);
    transfer_ = connection_.write(span(128, 16), RemoteSpan{*id, 0x10000, 16});
  }

  void expect_done() {
    const Status done = transfer_.wait(kLimit);
    EXPECT_TRUE(done) << done.error().message;
  }

  LocalSpan span(std::size_t at, std::size_t size) {
    return {region_->descriptor().region, memory_.data() + at, size};
  }
  std::string text(std::size_t at, std::size_t size) {
    return to_string(ByteView(memory_).subspan(at, size));
  }

  Bytes memory_ = Bytes(kSize);
  std::optional<Endpoint> endpoint_;
  std::optional<MemoryRegion> region_;
  Known known_;
  std::optional<RecordedPeer> peer_;
  Connection connection_;
  Transfer transfer_;
};

TEST_P(RecordedSession, IsStillSpoken) {
  std::ifstream record(std::string(P2P_RECORDS) + "/" + GetParam() + ".txt");
  ASSERT_TRUE(record);
  int number = 0;
  for (std::string line; std::getline(record, line) && !HasFailure();) {
    SCOPED_TRACE(fmt::format("line {}", ++number));
    if (!line.empty() && line.front() != '#') play(line);
  }
  EXPECT_GT(number, 0);
}

INSTANTIATE_TEST_SUITE_P(Versions, RecordedSession, ::testing::Values("wire_5"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace p2p::testing
