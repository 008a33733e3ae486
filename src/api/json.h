// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace p2p {

/// One value of a JSON text that somebody else has written.
class Json {
 public:
  /// Nothing for what is no JSON, is nested more than 16 deep, or holds more than 2^18 values. A word, such
  /// as a number, is any: who wants a number reads it.
  static std::optional<Json> parse(std::string_view text);

  /// A text or a word, as UTF-8; none for a list, or an object.
  const std::string* scalar() const { return kind_ == Kind::kScalar ? &scalar_ : nullptr; }

  /// The last of that name; null where there is none, or this is no object.
  const Json* find(std::string_view name) const;

  /// What a list holds; null if this is none.
  const std::vector<Json>* list() const { return kind_ == Kind::kList ? &list_ : nullptr; }

  bool is_object() const { return kind_ == Kind::kObject; }

  /// `text` as JSON, in its quotes.
  static std::string quoted(std::string_view text);

 private:
  class Reader;
  enum class Kind { kScalar, kList, kObject };

  Kind kind_ = Kind::kScalar;
  std::string scalar_;
  std::vector<Json> list_;  // an object's values, too
  std::vector<std::string> names_;
};

}  // namespace p2p
