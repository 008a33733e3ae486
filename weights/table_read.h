// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "node.h"

namespace p2p::weights {

/// A table of a peer that is on its way here.
class TableRead {
 public:
  /// Refuses tables of more than `kMostTableBytes`.
  static Result<std::unique_ptr<TableRead>> start(Node& node, const LinkPtr& link,
                                                  const RegionDescriptor& table);
  ~TableRead();
  TableRead(const TableRead&) = delete;
  TableRead& operator=(const TableRead&) = delete;

  bool done() const { return transfer_.done(); }
  Status status() const { return transfer_.status(); }
  const std::string& bytes() const { return bytes_; }

 private:
  TableRead() = default;

  std::string bytes_;
  MemoryRegion region_;
  Transfer transfer_;
};

}  // namespace p2p::weights
