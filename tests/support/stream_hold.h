// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace p2p::testing {

/// Work for CUDA streams that lasts until it is let go, or for a minute. Knows the driver by name alone, so
/// that tests with it compile where CUDA is missing.
class StreamHold {
 public:
  StreamHold() = default;
  StreamHold(const StreamHold&) = delete;
  StreamHold& operator=(const StreamHold&) = delete;
  ~StreamHold() {
    let_go();
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kMost, [this] { return pending_ == 0; });
  }

  /// False if the driver did not take it. The handles of default streams need a current context.
  bool put_on(void* stream) {
    const auto launch =
        driver<int(void* stream, void (*function)(void*), void* argument)>("cuLaunchHostFunc");
    const auto context_of = driver<int(void* stream, void** context)>("cuStreamGetCtx");
    const auto get_current = driver<int(void** context)>("cuCtxGetCurrent");
    const auto set_current = driver<int(void* context)>("cuCtxSetCurrent");
    if (launch == nullptr || context_of == nullptr || get_current == nullptr || set_current == nullptr) {
      return false;
    }
    void* before = nullptr;
    void* context = nullptr;
    if (get_current(&before) != 0 || context_of(stream, &context) != 0 || set_current(context) != 0) {
      return false;
    }
    {
      const std::lock_guard lock(mutex_);
      ++pending_;
    }
    const bool taken = launch(stream, &StreamHold::run, this) == 0;
    set_current(before);
    if (taken) return true;
    const std::lock_guard lock(mutex_);
    --pending_;
    return false;
  }

  void let_go() {
    const std::lock_guard lock(mutex_);
    free_ = true;
    changed_.notify_all();
  }

  /// Not let go, and not given up either.
  bool holds() {
    const std::lock_guard lock(mutex_);
    return !free_ && pending_ != 0;
  }

 private:
  static constexpr std::chrono::seconds kMost{60};

  template <class Function>
  static Function* driver(const char* name) {
    void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return library == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(library, name));
  }

  static void run(void* self) {
    auto& hold = *static_cast<StreamHold*>(self);
    std::unique_lock lock(hold.mutex_);
    hold.changed_.wait_for(lock, kMost, [&hold] { return hold.free_; });
    --hold.pending_;
    hold.changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool free_ = false;
  int pending_ = 0;
};

}  // namespace p2p::testing
