// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <pthread.h>

#include <csignal>
#include <memory>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/fork.h"

namespace p2p {
namespace {

thread_local bool engine_thread = false;

}  // namespace

Result<std::thread> start_thread(std::string name, std::function<void()> run) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) sigdelset(&all, fault);  // would end the process
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  int failure = 0;
  try {
    thread = std::thread([name, run = std::move(run), use = std::make_unique<EngineUse>()] {
      engine_thread = true;
      ::pthread_setname_np(::pthread_self(), name.c_str());
      run();
    });
  } catch (const std::system_error& error) {
    failure = error.code().value();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failure != 0) return tl::unexpected(system_error(fmt::format("start the thread {}", name), failure));
  return thread;
}

bool on_engine_thread() { return engine_thread; }

}  // namespace p2p
