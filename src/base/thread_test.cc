// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace p2p {
namespace {

TEST(Thread, BlocksSignalsAndKnowsWhatItIs) {
  sigset_t mask;
  sigemptyset(&mask);
  bool ours = false;
  auto thread = start_thread("a-thread", [&] {
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    ours = on_engine_thread();
  });
  ASSERT_TRUE(thread) << thread.error().message;
  thread->join();
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGPROF, SIGALRM, SIGUSR1, SIGRTMIN}) {
    EXPECT_EQ(sigismember(&mask, signal), 1) << signal;
  }
  for (const int fault : {SIGSEGV, SIGBUS}) EXPECT_EQ(sigismember(&mask, fault), 0) << "base/guarded_copy.h";
  EXPECT_TRUE(ours);
  EXPECT_FALSE(on_engine_thread());
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGTERM), 0) << "the caller's are as before";
}

TEST(Thread, SaysThatThereIsNoneLeft) {
  pthread_attr_t before;
  ASSERT_EQ(::pthread_getattr_default_np(&before), 0);
  pthread_attr_t huge;
  ASSERT_EQ(::pthread_attr_init(&huge), 0);
  ASSERT_EQ(::pthread_attr_setstacksize(&huge, std::size_t{1} << 62), 0);  // no address space has it
  ASSERT_EQ(::pthread_setattr_default_np(&huge), 0);
  const auto thread = start_thread("too-many", [] {});
  ASSERT_EQ(::pthread_setattr_default_np(&before), 0);
  ASSERT_FALSE(thread);
  EXPECT_EQ(thread.error().code, ErrorCode::kSystem);
  EXPECT_NE(thread.error().message.find("start the thread too-many"), std::string::npos);
}

}  // namespace
}  // namespace p2p
