// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/fork.h"
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
  /// shared_ptr. One that nobody holds any more is waited for, until it is destroyed: the next one will want
  /// its file or its port.
  template <class Make>
  Result<std::shared_ptr<T>> get(const std::string& name, const Make& make) {
    MutexLock lock(mutex_);
    Entry& entry = by_name_[name];
    if (auto held = entry.object.lock()) return held;
    if (entry.exists) entry.exists->wait(true);
    Result<std::shared_ptr<T>> made = make();
    if (!made) return made;
    const auto exists = std::make_shared<std::atomic<bool>>(true);
    T* const object = made->get();
    const std::shared_ptr<T> shared(object, [exists, owner = std::move(*made)](T*) mutable {
      const EngineUse use;  // a child forked in here would wait for ever
      owner.reset();
      *exists = false;
      exists->notify_all();
    });
    entry = {shared, exists};
    return shared;
  }

 private:
  struct Entry {
    std::weak_ptr<T> object;
    std::shared_ptr<std::atomic<bool>> exists;  // null: there was none
  };

  Mutex mutex_;
  std::map<std::string, Entry> by_name_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p
