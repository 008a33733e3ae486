// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/transfer/reroute.h"

#include <map>
#include <utility>
#include <vector>

#include "transport/registration.h"

namespace p2p::engine {
namespace {

template <class Id, class Value>
std::shared_ptr<Value> find_in(const std::map<Id, std::shared_ptr<Value>>& map, const Id& id) {
  const auto found = map.find(id);
  return found == map.end() ? nullptr : found->second;
}

}  // namespace

// Segments name a transport's handles; those know which regions they are of.
Result<std::shared_ptr<const SegmentList>> build_reroute(
    const SegmentList& list, const Batch& batch,
    const std::function<Result<std::size_t>(const Region&, const RemoteRegion&)>& route) {
  std::map<RegionId, std::shared_ptr<Region>> locals;
  std::map<RemoteRegionId, std::shared_ptr<RemoteRegion>> remotes;
  std::map<std::pair<RegionId, RegionKey>, RemoteRegionId> imported;
  for (const auto& local : list.locals) locals.emplace(local->info().id, local);
  for (const auto& remote : list.remotes) {
    remotes.emplace(remote->id(), remote);
    imported.emplace(std::pair(remote->info().id, remote->info().key), remote->id());
  }
  std::vector<LocalSpan> from;
  std::vector<RemoteSpan> to;
  batch.for_each_piece([&](const Segment& item) {
    const RegionInfo& there = item.key->info();
    from.push_back({item.registration->info().id, item.local, item.size});
    to.push_back({imported.at({there.id, there.key}), item.remote, item.size});
  });
  return build_list(batch.operation, from, to,
                    {[&](RegionId id) { return find_in(locals, id); },
                     [&](RemoteRegionId id) { return find_in(remotes, id); }, route});
}

}  // namespace p2p::engine
