// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "table_read.h"

#include <utility>

#include "tables.h"

namespace p2p::weights {

Result<std::unique_ptr<TableRead>> TableRead::start(Node& node, const LinkPtr& link,
                                                    const RegionDescriptor& table) {
  if (table.size == 0 || table.size > kMostTableBytes) {
    return tl::unexpected(Error{
        ErrorCode::kProtocol, "A table of " + std::to_string(table.size) +
                                  " bytes is refused: " + std::to_string(kMostTableBytes) + " is the most."});
  }
  std::unique_ptr<TableRead> read(new TableRead);
  read->bytes_.resize(table.size);
  auto region = node.endpoint().register_memory(read->bytes_.data(), read->bytes_.size());
  if (!region) return tl::unexpected(std::move(region.error()));
  read->region_ = std::move(*region);
  const auto remote = link->connection.import_region(table);
  if (!remote) return tl::unexpected(remote.error());
  read->transfer_ = link->connection.read(read->region_.span(), {*remote, table.address, table.size});
  read->transfer_.on_done([wake = node.wake()] { wake->ring(); });
  return read;
}

TableRead::~TableRead() {
  if (transfer_.valid()) transfer_.cancel();
}

}  // namespace p2p::weights
