// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>

// Clang's thread-safety analysis; nothing for other compilers.
#if defined(__clang__)
#define P2P_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define P2P_THREAD_ATTRIBUTE(x)
#endif
#define P2P_CAPABILITY(x) P2P_THREAD_ATTRIBUTE(capability(x))
#define P2P_SCOPED_CAPABILITY P2P_THREAD_ATTRIBUTE(scoped_lockable)
#define P2P_GUARDED_BY(x) P2P_THREAD_ATTRIBUTE(guarded_by(x))
#define P2P_REQUIRES(...) P2P_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define P2P_ACQUIRE(...) P2P_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define P2P_RELEASE(...) P2P_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define P2P_TRY_ACQUIRE(...) P2P_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define P2P_ASSERT_HELD(...) P2P_THREAD_ATTRIBUTE(assert_capability(__VA_ARGS__))
#define P2P_EXCLUDES(...) P2P_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))

namespace p2p {

/// std::mutex that the analysis knows.
class P2P_CAPABILITY("mutex") Mutex {
 public:
  void lock() P2P_ACQUIRE() { mutex_.lock(); }
  void unlock() P2P_RELEASE() { mutex_.unlock(); }
  bool try_lock() P2P_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

/// Holds a Mutex for a scope. To wait, use std::condition_variable_any on the Mutex itself.
class P2P_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) P2P_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() P2P_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace p2p
