// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "p2p/result.h"

namespace p2p::testing {

/// The words of one command to a peer process, after its name. Missing and wrong ones read as zero or empty.
class Words {
 public:
  explicit Words(const std::string& line) : words_(line) {}

  std::string text() {
    std::string word;
    words_ >> word;
    return word;
  }

  std::uint64_t number() {
    const std::string word = text();
    std::uint64_t value = 0;
    std::from_chars(word.data(), word.data() + word.size(), value);
    return value;
  }

  std::chrono::milliseconds time() { return std::chrono::milliseconds(number()); }

  std::string rest() {
    std::string words;
    std::getline(words_ >> std::ws, words);
    return words;
  }

 private:
  std::istringstream words_;
};

/// Names with commas between them.
inline std::vector<std::string> names_in(const std::string& text) {
  std::istringstream words(text);
  std::vector<std::string> names;
  for (std::string name; std::getline(words, name, ',');) names.push_back(name);
  return names;
}

/// A peer's answers: "ok ...", or "error <code> <sentence>".
inline std::string ok(const std::string& words) { return "ok " + words; }

inline std::string answer(const Status& status) {
  if (status) return "ok";
  return fmt::format("error {} {}", to_string(status.error().code), status.error().message);
}

template <class T>
std::string answer_error(const Result<T>& result) {
  return answer(tl::unexpected(result.error()));
}

inline ErrorCode code_of(const std::string& name) {
  constexpr std::array kCodes{
      ErrorCode::kInvalidArgument, ErrorCode::kOutOfRange, ErrorCode::kNotFound, ErrorCode::kPermissionDenied,
      ErrorCode::kUnavailable,     ErrorCode::kPeerGone,   ErrorCode::kTimedOut, ErrorCode::kCancelled,
      ErrorCode::kMessageTooLong,  ErrorCode::kProtocol,   ErrorCode::kSystem};
  const auto found =
      std::find_if(kCodes.begin(), kCodes.end(), [&](ErrorCode code) { return to_string(code) == name; });
  return found == kCodes.end() ? ErrorCode::kProtocol : *found;
}

/// The words after "ok", or the error.
inline Result<std::string> parse_answer(const std::string& line) {
  if (line.starts_with("ok")) return line.size() > 3 ? line.substr(3) : std::string();
  Words words(line);
  words.text();
  const std::string code = words.text();
  return tl::unexpected(Error{code_of(code), fmt::format("peer: {} {}", code, words.rest())});
}

}  // namespace p2p::testing
