// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/transfer/prepared_list.h"

#include <utility>

namespace p2p::engine {

Result<std::shared_ptr<PreparedList>> PreparedList::make(std::shared_ptr<Transfers> transfers,
                                                         Operation operation,
                                                         std::span<const LocalSpan> local,
                                                         std::span<const RemoteSpan> remote,
                                                         std::span<const StridedPair> strided) {
  auto list = transfers->build(operation, local, remote, strided);
  if (!list) return tl::unexpected(list.error());
  std::shared_ptr<PreparedList> prepared(new PreparedList(std::move(transfers), operation));
  prepared->bytes_ = bytes_of(local, strided);
  {
    MutexLock lock(prepared->mutex_);
    prepared->list_ = std::move(*list);
    if (prepared->list_) return prepared;
    prepared->local_.assign(local.begin(), local.end());
    prepared->remote_.assign(remote.begin(), remote.end());
    prepared->strided_.assign(strided.begin(), strided.end());
  }
  prepared->transfers_->build_later(prepared, remote);
  return prepared;
}

// Leaves it unbuilt as long as the peer's message is missing.
Status PreparedList::try_build() {
  auto built = transfers_->build(operation_, local_, remote_, strided_);
  if (!built) return tl::unexpected(built.error());
  list_ = std::move(*built);
  if (!list_) return {};
  local_ = {};
  remote_ = {};
  strided_ = {};
  return {};
}

void PreparedList::build() {
  MutexLock lock(mutex_);
  // What is wrong with it the next post will say.
  if (!list_) static_cast<void>(try_build());
}

std::shared_ptr<TransferState> PreparedList::post(const PostOptions& options) {
  std::shared_ptr<const SegmentList> list;
  {
    MutexLock lock(mutex_);
    if (!list_) {
      if (const Status built = try_build(); !built) return failed_transfer(built.error());
      if (!list_) return transfers_->start(operation_, local_, remote_, options, strided_);
    }
    list = list_;
  }
  return transfers_->post(list, options);
}

std::size_t PreparedList::segments() const {
  MutexLock lock(mutex_);
  if (!list_) return local_.size();
  std::size_t segments = 0;
  for (const auto& portion : list_->portions) segments += portion.segments.size();
  return segments;
}

}  // namespace p2p::engine
