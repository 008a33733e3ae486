// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "p2p/api.h"
#include "p2p/endpoint.h"
#include "p2p/result.h"

namespace p2p {

/// Where a named endpoint listens.
struct DirectoryEntry {
  std::string name;     ///< one line
  std::string address;  ///< numeric, or a host's name
  std::uint16_t port = 0;
  std::string gpu = "0";  ///< an index, or a PCI address

  friend bool operator==(const DirectoryEntry&, const DirectoryEntry&) = default;
};

/// An entry that has come, or has changed, or is gone.
struct DirectoryChange {
  DirectoryEntry entry;
  bool gone = false;

  friend bool operator==(const DirectoryChange&, const DirectoryChange&) = default;
};

/// Finds endpoints by names that the program gives them, where addresses are not known beforehand. What was
/// published lives for the time of a lease and is renewed by a thread until it is withdrawn. It proves
/// nothing about who is listed: keys and certificates do. Python's `uccl.directory` reads and writes the
/// same. Movable; any thread may make any call.
class P2P_API Directory {
 public:
  /// Nothing is asked of it yet. `lease`: from 1 to 10 seconds. kInvalidArgument for what is none of
  /// * static://name=host:port,..., static:///path/of/a/file with one name=host:port a line, or
  ///   static://$VARIABLE that holds either; nothing can be published there;
  /// * folder:///path, which all processes see, and whose hosts' clocks agree to a second or so;
  /// * etcd://host:port/prefix of etcd 3.4 or newer (port 2379, prefix /uccl/endpoints), by its JSON gateway,
  ///   without TLS; where this library was built with Boost.Beast;
  /// * k8s://service.namespace.svc:port, a headless service, whose pods all listen at that port: `lookup`
  ///   finds a pod by its name, and nothing has to be published.
  ///
  /// Calls of the latter two take up to 3 seconds where the server or the resolver does not answer.
  static Result<Directory> use(const std::string& where,
                               std::chrono::milliseconds lease = std::chrono::seconds{6});

  Directory(Directory&& other) noexcept;
  Directory& operator=(Directory&& other) noexcept;
  ~Directory();  ///< withdraws all

  /// Lists the entry in place of what had its name. An error if the directory cannot be reached now; from
  /// then on it is only tried again.
  Status publish(const DirectoryEntry& entry);
  Status publish(const std::string& name, const Endpoint& endpoint, std::int32_t gpu = 0);

  /// Takes back what this object has published; nothing if it has not. What cannot be reached now is told
  /// once it is back, or forgets it with the lease.
  Status withdraw(const std::string& name);

  /// Who is not there yet is waited for, and so is a directory that is down. kNotFound once `timeout` is
  /// over, or the directory's error if it was down then.
  Result<DirectoryEntry> lookup(const std::string& name, std::chrono::nanoseconds timeout = {}) const;

  /// All that is listed now, by names.
  Result<std::vector<DirectoryEntry>> entries() const;

  /// What has changed since `known`, empty at first, was right; it is right again then. Waits for a change;
  /// nothing once `timeout` is over.
  Result<std::vector<DirectoryChange>> watch(std::vector<DirectoryEntry>& known,
                                             std::chrono::nanoseconds timeout) const;

 private:
  class Keeper;
  explicit Directory(std::unique_ptr<Keeper> keeper);
  std::unique_ptr<Keeper> keeper_;
};

}  // namespace p2p
