// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/job.h"

#include <utility>

namespace p2p::device {

Result<Copier*> OwnCopiers::of(int device) {
  std::unique_ptr<Copier>& copier = taken_[device];
  if (!copier) {
    auto taken = all_.take(device);
    if (!taken) return tl::unexpected(std::move(taken.error()));
    copier = std::move(*taken);
  }
  return copier.get();
}

bool OwnCopiers::give_back() {
  bool through = true;
  for (auto& [device, copier] : taken_) through = all_.give_back(std::move(copier)) && through;
  taken_.clear();
  return through;
}

Result<Job::Part> Job::part(OwnCopiers& copiers, int device) {
  const auto copier = copiers.of(device);
  if (!copier) return tl::unexpected(copier.error());
  return part(**copier);
}

Job::Part Job::part(Copier& copier) {
  if (first_.copier == &copier) return first_;
  for (const Part& part : others_) {
    if (part.copier == &copier) return part;
  }
  const Part part{&copier, copier.take()};
  if (part.list == nullptr) return part;
  if (first_.list == nullptr) {
    first_ = part;
  } else {
    others_.push_back(part);
  }
  return part;
}

void Job::start() {
  all([](const Part& part) {
    part.copier->start(*part.list);
    return true;
  });
}

void Job::drop() {
  all([](const Part& part) {
    part.copier->give_back(*part.list);
    return true;
  });
  first_ = {};
  others_.clear();
}

void Job::refuse(const Error& why) {
  drop();
  status_ = tl::unexpected(why);
}

bool Job::finished() {
  if (!all([](const Part& part) { return part.copier->finished(*part.list); })) return false;
  all([this](const Part& part) {
    if (status_) status_ = part.list->status();
    return true;
  });
  drop();
  return true;
}

}  // namespace p2p::device
