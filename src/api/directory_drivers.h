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

using Entries = std::map<std::string, DirectoryEntry>;  // by names

/// What a directory is kept in. Thread-safe, but for calls that write, of which there is one at a time. Each
/// call has a bound.
class Driver {
 public:
  /// kInvalidArgument for a text that names none.
  static Result<std::unique_ptr<Driver>> of(const std::string& where, std::chrono::milliseconds lease);

  virtual ~Driver() = default;

  /// Lists it for the time of a lease.
  virtual Status put(const DirectoryEntry& entry) = 0;

  /// The same of all that this process has published, again. The last error; others may be listed.
  virtual Status renew(const Entries& published);

  /// What is not there is removed already.
  virtual Status remove(const std::string& name) = 0;

  /// The same of all that this process has published, as far as it goes.
  virtual void end(const Entries& published);

  /// Nothing for who is not listed, or whose lease is over.
  virtual Result<std::optional<DirectoryEntry>> get(const std::string& name) = 0;
  virtual Result<Entries> all() = 0;

  /// What is another whenever `all` is, for who looks often; empty: not known.
  virtual Result<std::string> mark() { return std::string(); }
};

/// Those that are asked over the network, by what follows `etcd://` and `k8s://`.
Result<std::unique_ptr<Driver>> in_etcd(const std::string& where, std::chrono::milliseconds lease);
Result<std::unique_ptr<Driver>> in_dns(const std::string& where);

/// An entry as text, which is good until then, if something is said, by the wall clock; and back: nothing for
/// what is no entry, or one whose time is over at `now`.
std::string text_of(const DirectoryEntry& entry,
                    std::optional<std::chrono::system_clock::time_point> until = std::nullopt);
std::optional<DirectoryEntry> parse(const std::string& name, std::string_view text,
                                    std::chrono::system_clock::time_point now);

}  // namespace p2p::directories
