// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "p2p/directory.h"

namespace p2p::directories {

/// What a directory is kept in. Thread-safe.
class Driver {
 public:
  /// kInvalidArgument for a text that names none.
  static Result<std::unique_ptr<Driver>> of(const std::string& where, std::chrono::milliseconds lease);

  virtual ~Driver() = default;

  /// Lists it for the time of a lease.
  virtual Status put(const DirectoryEntry& entry) = 0;

  /// What is not there is removed already.
  virtual Status remove(const std::string& name) = 0;

  /// Nothing for who is not listed, or whose lease is over.
  virtual Result<std::optional<DirectoryEntry>> get(const std::string& name) = 0;
  virtual Result<std::map<std::string, DirectoryEntry>> all() = 0;
};

/// An entry as text, which is good until then, by the wall clock; and back: nothing for what is no entry, or
/// one whose time is over at `now`.
std::string text_of(const DirectoryEntry& entry, std::chrono::system_clock::time_point until);
std::optional<DirectoryEntry> parse(const std::string& name, std::string_view text,
                                    std::chrono::system_clock::time_point now);

}  // namespace p2p::directories
