// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "conformance/peer.h"
#include "support/process.h"

namespace p2p::conformance {

/// The other side of a pair as a process of its own (this program, run with `--serve`), which owns memory of
/// `kServedBytes` and only answers. It ends with its owner.
class OtherProcess {
 public:
  static constexpr std::size_t kServedBytes = std::size_t{16} << 20;

  OtherProcess(const std::string& transport, Role role);

  /// Kills it and closes what was connected to it.
  ~OtherProcess();

  /// Opens `mine` towards it and waits until the channels of `mine` are ready. Once only; `mine` outlives
  /// this.
  Status connect(Peer& mine);

  const RegionOffer& region() const { return region_; }

  /// Of the first byte of the region, there.
  std::uint64_t address() const { return address_; }

  /// SIGKILL; returns when it is dead.
  void kill() { process_->kill_now(); }

 private:
  Role role_;
  UniqueFd socket_;
  std::optional<testing::Process> process_;
  RegionOffer region_;
  std::uint64_t address_ = 0;
  Peer* mine_ = nullptr;
  std::thread reader_;
};

/// Runs such a process; `arguments` are those after `--serve`. Returns the exit code.
int serve(const std::vector<std::string>& arguments);

}  // namespace p2p::conformance
