// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "table_read.h"

#include <utility>

#include "tables.h"

namespace p2p::weights {

Result<std::unique_ptr<TableRead>> TableRead::start(Node& node, const LinkPtr& link, const TableAt& at) {
  if (!at.bytes.empty()) {
    std::unique_ptr<TableRead> read(new TableRead);
    read->bytes_ = at.bytes;
    return read;
  }
  const RegionDescriptor& table = at.memory;
  if (table.size == 0 || table.size > kMostTableBytes) {
    return tl::unexpected(Error{
        ErrorCode::kProtocol, "A table of " + std::to_string(table.size) +
                                  " bytes is refused: " + std::to_string(kMostTableBytes) + " is the most."});
  }
  return start(node, link, table, table.address, table.size);
}

Result<std::unique_ptr<TableRead>> TableRead::start(Node& node, const LinkPtr& link,
                                                    const RegionDescriptor& memory, std::uint64_t address,
                                                    std::uint64_t bytes) {
  std::unique_ptr<TableRead> read(new TableRead);
  read->bytes_.resize(bytes);
  auto region = node.endpoint().register_memory(read->bytes_.data(), read->bytes_.size(),
                                                {.read_only = true, .peers = {}});
  if (!region) return tl::unexpected(std::move(region.error()));
  read->region_ = std::move(*region);
  const auto remote = link->connection.import_region(memory);
  if (!remote) return tl::unexpected(remote.error());
  read->transfer_ = link->connection.read(read->region_.span(), {*remote, address, bytes});
  read->transfer_.on_done([wake = node.wake()] { wake->ring(); });
  return read;
}

TableRead::~TableRead() {
  if (transfer_.valid()) transfer_.cancel();
}

}  // namespace p2p::weights
