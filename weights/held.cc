// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "held.h"

namespace p2p::weights {

Progress Held::progress() const {
  Progress progress = fetch->progress();
  progress.offered = offered, progress.joined = joined;
  for (auto* time : {&progress.first, &progress.last})
    *time += time->count() > 0 ? offered : std::chrono::nanoseconds(0);
  return progress;
}

void Held::tell(Samples& samples) const {
  const Account account = holding ? holding->account() : Account();
  samples.subscribed(version, demand.bytes, holding ? holding->bytes() : 0, account);
  if (holding && admitted && holding->whole()) return;
  const std::string asked = directory ? directory->peer.place() : "an offer";
  const std::string& on = admitted ? account.waits_for : asked;
  if (!on.empty()) samples.waits(version, on);
  if (fetch && !fetch->progress().from.empty()) samples.takes(version, fetch->progress().from);
}

}  // namespace p2p::weights
