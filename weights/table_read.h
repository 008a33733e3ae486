// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "node.h"

namespace p2p::weights {

/// Bytes of a peer, such as a table or a delta, that are on their way here.
class TableRead {
 public:
  /// All of `table`, which may have been said. Refuses more than `kMostTableBytes`.
  static Result<std::unique_ptr<TableRead>> start(Node& node, const LinkPtr& link, const TableAt& table);
  /// So many bytes from an address in `memory`.
  static Result<std::unique_ptr<TableRead>> start(Node& node, const LinkPtr& link,
                                                  const RegionDescriptor& memory, std::uint64_t address,
                                                  std::uint64_t bytes);
  ~TableRead();
  TableRead(const TableRead&) = delete;
  TableRead& operator=(const TableRead&) = delete;

  bool done() const { return !transfer_.valid() || transfer_.done(); }
  Status status() const { return transfer_.valid() ? transfer_.status() : Status(); }
  const Transfer& transfer() const { return transfer_; }  ///< of what was not said
  const std::string& bytes() const { return bytes_; }

 private:
  TableRead() = default;

  std::string bytes_;
  MemoryRegion region_;
  Transfer transfer_;  // none: it was said
};

}  // namespace p2p::weights
