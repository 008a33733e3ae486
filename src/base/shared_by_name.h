// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "p2p/result.h"

namespace p2p {

/// Objects that a process shares by name, each as long as somebody holds it. Thread-safe.
template <class T>
class SharedByName {
 public:
  /// The one table of T of this process. Never destroyed: endpoints may outlive static objects.
  static SharedByName& of_process() {
    static auto* const all = new SharedByName;
    return *all;
  }

  /// The object of that name. If there is none, `make` is called under the lock; it returns a Result of a
  /// shared_ptr.
  template <class Make>
  Result<std::shared_ptr<T>> get(const std::string& name, const Make& make) {
    MutexLock lock(mutex_);
    std::weak_ptr<T>& entry = by_name_[name];
    if (auto held = entry.lock()) return held;
    Result<std::shared_ptr<T>> made = make();
    if (made) entry = *made;
    return made;
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::weak_ptr<T>> by_name_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p
