// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <future>
#include <thread>

namespace p2p::testing {

/// A thread that does nothing until it is destroyed.
class IdleThread {
 public:
  IdleThread() : thread_([over = over_.get_future()] { over.wait(); }) {}
  ~IdleThread() {
    over_.set_value();
    thread_.join();
  }
  IdleThread(const IdleThread&) = delete;
  IdleThread& operator=(const IdleThread&) = delete;

  pthread_t handle() { return thread_.native_handle(); }

 private:
  std::promise<void> over_;
  std::thread thread_;
};

}  // namespace p2p::testing
