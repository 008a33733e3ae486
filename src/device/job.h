// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "device/copiers.h"
#include "p2p/result.h"

namespace p2p::device {

/// One channel's copiers: one of those that all share for each device, from its first copy there on. Used by
/// one thread at a time.
class OwnCopiers {
 public:
  /// `all` outlives it.
  explicit OwnCopiers(Copiers& all) : all_(all) {}
  ~OwnCopiers() { give_back(); }
  OwnCopiers(const OwnCopiers&) = delete;
  OwnCopiers& operator=(const OwnCopiers&) = delete;

  Result<Copier*> of(int device);

  /// Waits for copies under way; false if one does not end within seconds.
  bool give_back();

 private:
  Copiers& all_;
  std::map<int, std::unique_ptr<Copier>> taken_;
};

/// Copies of any devices that end together, with one outcome. Used by the thread that uses its copiers, which
/// outlive whatever is under way.
class Job {
 public:
  /// The copies of one device.
  struct Part {
    Copier* copier = nullptr;
    Copier::List* list = nullptr;  ///< null: all are in use

    void add(const kernels::CopyBlock& block, const Ways& ways) const { copier->add(*list, block, ways); }
    void add(const kernels::CopyBlock& block) const { copier->add(*list, block); }
    kernels::CopyBlock* room() const { return copier->room(*list); }
    void added(const kernels::CopyList& more) const { Copier::added(*list, more); }
    void add_rows(const kernels::CopyRows& rows) const { Copier::add_rows(*list, rows); }
  };

  /// Where copies by `device` are added to.
  Result<Part> part(OwnCopiers& copiers, int device);
  Part part(Copier& copier);

  void start();

  /// What was added and not started is not copied.
  void drop();

  /// The same, and that is how it ended.
  void refuse(const Error& why);

  /// Never blocks; true also where nothing was started. The bytes are visible to whoever learns of it.
  bool finished();

  /// How it ended, once finished: the first error of a part.
  const Status& status() const { return status_; }

 private:
  template <class Visit>
  bool all(Visit visit) const {
    return (first_.list == nullptr || visit(first_)) && std::ranges::all_of(others_, visit);
  }

  Part first_;  // mostly the only one
  std::vector<Part> others_;
  Status status_;
};

}  // namespace p2p::device
