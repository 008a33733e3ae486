// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "support/hex.h"
#include "support/relay.h"

namespace p2p::testing {

/// What a relay heard of a session without a key, over one stream of tcp, as tests/support/recorded has it.
/// The side that dialled becomes the recorded one: what it said is written byte by byte, but for the names of
/// what the other side has drawn; of the other side's what every endpoint of the version would say.
class SessionRecord {
 public:
  /// `names` are bytes that the other side has drawn, and how the record calls them.
  explicit SessionRecord(std::map<std::string, Bytes> names) : names_(std::move(names)) {}

  std::string text(const std::vector<Relay::Piece>& pieces) {
    for (const Relay::Piece& piece : pieces) {
      if (!piece.mark.empty()) {
        text_ += piece.mark + "\n";
        continue;
      }
      if (piece.connection > 1) throw std::runtime_error("the session has more than one stream");
      Bytes& heard = heard_[{piece.connection, piece.dialler}];
      heard.insert(heard.end(), piece.bytes.begin(), piece.bytes.end());
      while (piece.connection == 0 ? session(heard, piece.dialler) : stream(heard, piece.dialler)) {
      }
    }
    return text_;
  }

 private:
  enum Opening : std::uint16_t { kHello = 1, kIntroduction = 2, kChannelAnswer = 4 };
  enum Message : std::uint16_t { kHeartbeat = 16, kBye = 17, kResumable = 31, kHandled = 32 };
  enum Frame : unsigned { kAcknowledgement = 5, kMessages = 7 };

  template <class Number>
  static Number number(ByteView bytes, std::size_t at) {
    return ByteReader(bytes.subspan(at)).get<Number>();
  }

  static Bytes cut(Bytes& from, std::size_t size) {
    const auto end = from.begin() + static_cast<std::ptrdiff_t>(size);
    Bytes front(from.begin(), end);
    from.erase(from.begin(), end);
    return front;
  }

  /// Digits, with names where they stand.
  std::string spell(ByteView bytes) const {
    std::string out;
    std::string plain;
    const auto add = [&](const std::string& word) {
      if (!word.empty()) out += " " + word;
    };
    while (!bytes.empty()) {
      const auto named = std::ranges::find_if(names_, [&](const auto& one) {
        return bytes.size() >= one.second.size() &&
               std::ranges::equal(bytes.first(one.second.size()), one.second);
      });
      if (named != names_.end()) {
        add(std::exchange(plain, {}));
        add(named->first);
      } else {
        plain += to_hex(bytes.first(1));
      }
      bytes = bytes.subspan(named != names_.end() ? named->second.size() : 1);
    }
    add(plain);
    return out;
  }

  /// The first bytes in groups of these sizes, then the rest.
  std::string spell(ByteView bytes, std::initializer_list<std::size_t> sizes) const {
    std::string out;
    for (const std::size_t size : sizes) {
      out += " " + to_hex(bytes.first(size));
      bytes = bytes.subspan(size);
    }
    return out + spell(bytes);
  }

  void line(const char* where, bool dialler, const std::string& words) {
    text_ += fmt::format("{} {}{}\n", where, dialler ? ">" : "<", words);
  }

  bool session(Bytes& heard, bool dialler) {
    if (heard.size() < 4 || heard.size() < 4 + number<std::uint32_t>(heard, 0)) return false;
    const Bytes frame = cut(heard, 4 + number<std::uint32_t>(heard, 0));
    const auto type = number<std::uint16_t>(frame, 4);
    if (type == kHeartbeat || type == kHandled || (ended_ && type != kBye)) return true;
    ended_ =
        ended_ || (dialler && type == kBye);  // what else comes now, and in which order, is a matter of time
    line("session", dialler, dialler ? spell(frame, {4, 2}) : pattern(type, ByteView(frame).subspan(4)));
    return true;
  }

  /// Of a control message. Numbers that options set, versions, places and texts for people may be others.
  std::string pattern(std::uint16_t type, ByteView message) {
    const ByteView fields = message.subspan(2);
    const std::string head = " " + to_hex(message.first(2));
    constexpr std::size_t kBounds = 4 + 4 + 8;  // how much the peer keeps
    switch (type) {
      case kHello: return head + " ?2 ?2 ?8 ?24 " + to_hex(fields.subspan(36));
      case kIntroduction: return head + spell(fields.first(fields.size() - kBounds), {32}) + " ?4 ?4 ?8";
      case kChannelAnswer: {
        constexpr std::size_t kLists =
            4 + 3 + 4 + 4;  // "tcp", no reason, one address; its length, version, port
        constexpr std::size_t kToken = kLists + 4 + 2 + 2;
        names_["token"] = Bytes(fields.begin() + kToken, fields.begin() + kToken + 16);
        return head + spell(fields.first(kLists), {4, 3, 4}) + " ?4 " +
               to_hex(fields.subspan(kLists + 4, 2)) + " ?2 token/16 ...";
      }
      case kBye: return head + " ...";
      case kResumable:
        names_["resumable"] = Bytes(fields.begin(), fields.begin() + 16);
        return head + " resumable/16 ...";
      default: return head + spell(fields);
    }
  }

  bool stream(Bytes& heard, bool dialler) {
    int& step = opening_[dialler ? 1 : 0];
    if (dialler && step < 2) return greeting(heard, step);
    if (step == 0) {
      if (heard.size() < 4 + 2 + 32 + 32) return false;
      const Bytes answer = cut(heard, 4 + 2 + 32 + 32);
      ++step;
      line("opening", dialler,
           fmt::format(" {} {} answer/32 ?32", to_hex(ByteView(answer).first(4)),
                       to_hex(ByteView(answer).subspan(4, 2))));
      return true;
    }
    if (heard.size() < 32) return false;
    const std::size_t size =
        std::size_t{32} + number<std::uint32_t>(heard, 4) + number<std::uint32_t>(heard, 8);
    if (heard.size() < size) return false;
    const Bytes frame = cut(heard, size);
    if (ended_) return true;
    if (dialler) {
      line("stream", dialler, spell(frame, {4, 4, 4, 4, 8, 8}));
    } else {
      answer(frame);
    }
    return true;
  }

  bool greeting(Bytes& heard, int& step) {
    const std::size_t size = step == 0 ? 4 + 2 + 16 + 32 : 32;
    if (heard.size() < size) return false;
    const Bytes said = cut(heard, size);
    line("opening", true,
         step == 0
             ? spell(ByteView(said).first(22), {4, 2}) + " greeting=" + to_hex(ByteView(said).subspan(22))
             : " proof");
    ++step;
    return true;
  }

  // How words lie in blocks, and what is acknowledged along the way, is a matter of time.
  void answer(ByteView frame) {
    const unsigned type = std::to_integer<unsigned>(frame[0]);
    if (type != kMessages) {
      const bool alone = type == kAcknowledgement;
      const auto part = [&](std::size_t at, std::size_t size) { return to_hex(frame.subspan(at, size)); };
      line("stream", false,
           fmt::format(" {} {} {} ?4 {} {}{}", part(0, 4), part(4, 4), part(8, 4), alone ? "?8" : part(16, 8),
                       alone ? part(24, 8) : "?8", spell(frame.subspan(32))));
      return;
    }
    for (ByteView words = frame.subspan(32 + 17); words.size() >= 6;) {
      const std::size_t size = number<std::uint32_t>(words, 0);
      line("word", false, spell(words.subspan(4, size), {2}));
      words = words.subspan(4 + size);
    }
  }

  std::map<std::string, Bytes> names_;
  std::map<std::pair<std::size_t, bool>, Bytes> heard_;  // of each connection and direction, not yet written
  std::array<int, 2> opening_{};                         // how much of it each side of the stream has said
  bool ended_ = false;
  std::string text_;
};

}  // namespace p2p::testing
