// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Plays the peers of tests/support/recorded, of which each speaks one version of the wire, against an
// endpoint of now; and makes such records: P2P_RECORD names a file for the session that a peer of now has.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "drivers/crypto/crypto.h"
#include "p2p/endpoint.h"
#include "support/bounds.h"
#include "support/eventually.h"
#include "support/hex.h"
#include "support/memory.h"
#include "support/raw_peer.h"
#include "support/relay.h"
#include "support/session_record.h"
#include "wire/versions.h"

namespace p2p::testing {
namespace {

Bytes from_digits(const std::string& digits) {
  Bytes bytes;
  for (std::size_t at = 0; at + 1 < digits.size(); at += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(digits.substr(at, 2), nullptr, 16)));
  }
  return bytes;
}

bool is_digits(const std::string& message) {
  return message.find_first_not_of("0123456789abcdef") == std::string::npos;
}

using Known = std::map<std::string, Bytes>;

/// Bytes as the record writes them.
Bytes spell(const std::vector<std::string>& messages, Known& known) {
  Bytes bytes;
  for (const std::string& message : messages) {
    const auto equals = message.find('=');
    if (equals != std::string::npos)
      known[message.substr(0, equals)] = from_digits(message.substr(equals + 1));
    const Bytes part = is_digits(message) ? from_digits(message) : known.at(message.substr(0, equals));
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  return bytes;
}

/// Whether the bytes are as the pattern says; remembers what that names.
bool matches(ByteView bytes, const std::vector<std::string>& pattern, Known& known) {
  for (const std::string& message : pattern) {
    if (message == "...") return true;
    const auto slash = message.find('/');
    const bool open = message.front() == '?' || slash != std::string::npos;
    const Bytes wanted = open ? Bytes() : is_digits(message) ? from_digits(message) : known.at(message);
    const auto digits = message.substr(slash == std::string::npos ? 1 : slash + 1);
    const std::size_t size = open ? std::stoul(digits) : wanted.size();
    if (bytes.size() < size) return false;
    const ByteView part = bytes.first(size);
    if (!open && !std::ranges::equal(part, wanted)) return false;
    if (slash != std::string::npos) known[message.substr(0, slash)] = Bytes(part.begin(), part.end());
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

constexpr std::uint16_t kBye = 17;

/// What there is of `size` bytes from `at` on.
Bytes part(ByteView bytes, std::size_t at, std::size_t size = std::numeric_limits<std::size_t>::max()) {
  bytes = bytes.subspan(std::min(at, bytes.size()));
  bytes = bytes.first(std::min(size, bytes.size()));
  return {bytes.begin(), bytes.end()};
}

template <class Number>
Number number_at(const Bytes& bytes, std::size_t at) {
  return ByteReader(part(bytes, at)).get<Number>();
}

class RecordedPeer {
 public:
  RecordedPeer(std::uint16_t port, Known& known) : session_(port), stream_(port), known_(known) {}

  /// One line of the record, but for what the application does.
  void play(const std::string& where, const std::string& direction,
            const std::vector<std::string>& messages) {
    if (where == "told") {
      known_["told"] = spell(messages, known_);
      return;
    }
    Line& line = where == "session" ? session_ : stream_;
    if (direction == ">") {
      if (messages.front() == "proof") prove();
      const Bytes bytes = spell(messages, known_);
      if (where == "session" && hellos_.empty()) {
        hellos_ = bytes;
        known_["incarnation"] = part(bytes, 4 + 2 + 2 + 2, 8);
      }
      if (where == "session" && number_at<std::uint16_t>(bytes, 4) == kBye) known_["bye"] = part(bytes, 10);
      ASSERT_TRUE(line.say(bytes));
    } else if (where == "opening") {
      ASSERT_TRUE(matches(stream_.take(4 + 2 + 32 + 32), messages, known_));
    } else {
      await(where, messages);
    }
  }

 private:
  Bytes session_frame() {
    const Bytes length = session_.take(4);
    Bytes frame = session_.take(number_at<std::uint32_t>(length, 0));
    if (!heard_hello_) {
      hellos_.insert(hellos_.end(), length.begin(), length.end());
      hellos_.insert(hellos_.end(), frame.begin(), frame.end());
    }
    heard_hello_ = true;
    return frame;
  }

  Bytes stream_frame() {
    Bytes frame = stream_.take(32);
    const Bytes rest = stream_.take(number_at<std::uint32_t>(frame, 4) + number_at<std::uint32_t>(frame, 8));
    frame.insert(frame.end(), rest.begin(), rest.end());
    if (!frame.empty() && frame.front() == std::byte{7}) hear(part(rest, 8 + 8 + 1));
    return frame;
  }

  /// A block's messages. They are awaited one by one: how they lie in blocks is a matter of time.
  void hear(const Bytes& messages) {
    for (std::size_t at = 0, size = 0; at < messages.size(); at += 4 + size) {
      size = number_at<std::uint32_t>(messages, at);
      messages_.push_back(part(messages, at + 4, size));
    }
  }

  Bytes message() {
    while (messages_.empty()) {
      if (stream_frame().empty()) return {};
    }
    Bytes first = std::move(messages_.front());
    messages_.pop_front();
    return first;
  }

  Bytes next(const std::string& where) {
    if (where == "word") return message();
    return where == "session" ? session_frame() : stream_frame();
  }

  /// Frames that say something else may come before: heartbeats, acknowledgements.
  void await(const std::string& where, const std::vector<std::string>& pattern) {
    std::string others;
    for (Bytes frame; !(frame = next(where)).empty();) {
      if (matches(frame, pattern, known_)) return;
      others += "\n";
      for (const std::byte byte : frame) others += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    }
    FAIL() << "it did not come; this did:" << others;
  }

  /// What docs/wire.md says of a stream's proof, where no key is set.
  void prove() {
    const auto secret = crypto::hmac_sha256(as_bytes("p2p hellos"), hellos_);
    Bytes greeting;
    ByteWriter said(greeting);
    said.put(as_bytes("p2pt"));
    said.put(std::uint16_t{4});
    for (const char* name : {"token", "greeting"}) said.put(ByteView(known_.at(name)));
    Bytes message;
    ByteWriter writer(message);
    for (const ByteView field :
         {as_bytes("p2p tcp stream"), ByteView(greeting), ByteView(known_.at("answer"))}) {
      writer.put(static_cast<std::uint32_t>(field.size()));
      writer.put(field);
    }
    writer.put(std::uint8_t{0});  // the connector's
    const auto proof = crypto::hmac_sha256(secret, message);
    known_["proof"] = Bytes(proof.begin(), proof.end());
  }

  Line session_;
  Line stream_;
  std::deque<Bytes> messages_;  // that came and nobody has awaited yet
  Known& known_;
  Bytes hellos_;
  bool heard_hello_ = false;
};

class RecordedSession : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr std::size_t kSize = 4096;

  static Options plain() {
    Options options;
    options.listen_address = "127.0.0.1";
    options.transports = {"tcp"};
    return options;
  }

  void make_endpoint() {
    endpoint_.emplace(Endpoint::create(plain()).value());
    region_.emplace(endpoint_->register_memory(memory_.data(), kSize).value());
  }

  void play_file(const std::string& path) {
    make_endpoint();
    peer_.emplace(endpoint_->port(), known_);
    std::ifstream record(path);
    ASSERT_TRUE(record);
    int number = 0;
    for (std::string line; std::getline(record, line) && !HasFailure();) {
      SCOPED_TRACE(fmt::format("line {}", ++number));
      if (!line.empty() && line.front() != '#') play(line);
    }
    EXPECT_GT(number, 0);
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
           EXPECT_NE(connection_.status().error().message.find(to_string(known_["bye"])), std::string::npos)
               << connection_.status().error().message;
         }},
    };
    acts.at(what)();
  }

  void describe() {
    const auto bytes = region_->descriptor().serialize();
    known_["address"] = part(bytes, 0, 8);
    known_["region"] = part(bytes, 16, 4);
    known_["key"] = part(bytes, 24, 16);
    known_["distance"].clear();
    ByteWriter(known_["distance"]).put_varint(2 * region_->descriptor().address);
    EXPECT_EQ(known_["distance"].size(), 7U) << "records say so in lengths";
    auto accepted = endpoint_->accept(kLimit);
    ASSERT_TRUE(accepted) << accepted.error().message;
    connection_ = *accepted;
    EXPECT_EQ(connection_.peer().note, "recorded");
    if (peer_) {
      EXPECT_EQ(connection_.peer().incarnation, number_at<std::uint64_t>(known_["incarnation"], 0));
    }
  }

  /// To memory of the peer, which it may have told of.
  void write() {
    RegionDescriptor there{.address = 0x10000, .size = kSize, .place = {}, .region = RegionId{7}};
    there.incarnation = connection_.peer().incarnation;
    for (std::size_t i = 0; i != there.key.size(); ++i) there.key[i] = static_cast<std::byte>(0x40 + i);
    if (known_.contains("told")) there = RegionDescriptor::parse(known_["told"]).value();
    const auto id = connection_.import_region(there);
    ASSERT_TRUE(id) << id.error().message;
    std::memcpy(memory_.data() + 128, "recorded write o", 16);
    transfer_ = connection_.write(span(128, 16), RemoteSpan{*id, there.address, 16});
  }

  void expect_done() const { expect_done(transfer_); }
  static void expect_done(const Transfer& transfer) {
    const Status done = transfer.wait(kLimit);
    EXPECT_TRUE(done) << done.error().message;
  }

  LocalSpan span(std::size_t at, std::size_t size) {
    return {region_->descriptor().region, memory_.data() + at, size};
  }
  std::string text(std::size_t at, std::size_t size) { return to_string(memory_.part(at, size)); }

  const Pages memory_{kSize};
  std::optional<Endpoint> endpoint_;
  std::optional<MemoryRegion> region_;
  Known known_;
  std::optional<RecordedPeer> peer_;
  Connection connection_;
  Transfer transfer_;
};

TEST_P(RecordedSession, IsStillSpoken) {
  ASSERT_NO_FATAL_FAILURE(play_file(std::string(P2P_RECORDS) + "/" + GetParam() + ".txt"));
}

INSTANTIATE_TEST_SUITE_P(Versions, RecordedSession, ::testing::Values("wire_1"),
                         [](const auto& one) { return std::string(one.param); });

constexpr const char* kHead =
    R"(# A session of a peer that spoke version {} of the wire, without a key, over one stream of tcp: what it said, and what
# it must hear. recorded_session_test.cc has heard it and plays it. Of a
# released version a record is never changed.
#
#   session >  HEX       the peer says it on the control connection      stream >  on the data stream
#   session <  PATTERN   it awaits such a frame there                    stream <  likewise
#   opening >, opening < the same before the stream has frames
#   message <     PATTERN   it awaits such a message, in whatever block of messages it comes
#   told >     HEX       the descriptor of its memory that its application ships
#   do NAME              what the application at the other side does
#
# In HEX a name stands for bytes known by then; NAME=HEX names some. In a PATTERN ?N are N bytes of any kind, NAME/N are N
# bytes to remember, ... is any rest; of a session's frame and of a message the pattern leaves the length out.
)";

/// Two endpoints of now, and a relay between them.
class Recording : public RecordedSession {
 protected:
  void doing(const std::string& what) {
    relay_->mark("do " + what);
    act(what);
  }
  void checking(const std::string& what) {  // what it waits for is said before
    act(what);
    relay_->mark("do " + what);
  }
  void remark(const std::string& text) { relay_->mark("\n# " + text); }

  /// What a peer of now says in a whole session.
  void hold_session() {
    make_endpoint();
    relay_.emplace(endpoint_->port());
    Options recorded = plain();
    recorded.streams = 1;
    Endpoint peer = Endpoint::create(recorded).value();
    const Pages pages(kSize);
    const MemoryRegion region = peer.register_memory(pages.data(), kSize).value();
    const auto say = [&](const std::string& what) {
      std::memcpy(pages.data(), what.data(), what.size());
      return region.span(0, what.size());
    };

    remark("Hellos, introductions, and one stream of tcp.");
    const Connection out = peer.connect(Relay::kHost, endpoint_->port(), kLimit, "recorded").value();
    checking("describe");
    const RegionDescriptor there = region_->descriptor();
    const RemoteSpan target{out.import_region(there).value(), there.address, 16};
    remark("Write 1, and the same bytes read again.");
    expect_done(out.write(say("recorded write 5"), target));
    checking("check_write");
    expect_done(out.read(region.span(16, 16), target));
    EXPECT_EQ(to_string(pages.part(16, 16)), "recorded write 5");
    remark("An eager message.");
    doing("receive");
    expect_done(out.send(say("message5")));
    checking("check_receive");
    remark("A notification.");
    expect_done(out.notify("notified"));
    checking("check_notification");
    remark("The other way round: a write, and a message.");
    relay_->mark("told > " + to_hex(region.descriptor()));
    const auto told = region.descriptor().serialize();
    known_["told"] = Bytes(told.begin(), told.end());
    doing("write");
    checking("check_written");
    EXPECT_EQ(to_string(pages.part(0, 16)), "recorded write o");
    const Transfer receive = out.recv(region.span(64, 8));
    doing("send");
    checking("check_sent");
    expect_done(receive);
    EXPECT_EQ(to_string(pages.part(64, 8)), "messageo");
    remark("Bye.");
    EXPECT_TRUE(out.close(kLimit));
    checking("check_closed");
  }

  /// Without what lives: for another session.
  void forget() {
    connection_ = {};
    region_.reset();
    endpoint_.reset();
    known_.clear();
  }

  std::optional<Relay> relay_;
};

TEST_F(Recording, OfASessionOfNowIsUnderstood) {
  hold_session();
  ASSERT_FALSE(HasFailure());
  Bytes named = known_["region"];
  named.insert(named.end(), known_["key"].begin(), known_["key"].end());
  SessionRecord record({{"region key", named}, {"distance", known_["distance"]}});
  const std::string text = fmt::format(kHead, wire::kVersions.newest) + record.text(relay_->stop());
  const char* const wanted = std::getenv("P2P_RECORD");
  const std::string path =
      wanted != nullptr ? wanted : ::testing::TempDir() + fmt::format("p2p_record_{}", ::getpid());
  std::ofstream(path) << text;
  forget();
  play_file(path);
  if (HasFailure()) fmt::print("{}", text);
  if (wanted == nullptr) std::remove(path.c_str());
}

}  // namespace
}  // namespace p2p::testing
