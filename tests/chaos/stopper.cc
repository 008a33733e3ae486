// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "stopper.h"

#include <csignal>
#include <utility>

#include "dice.h"

namespace p2p::chaos {

Stopper::Stopper(std::vector<pid_t> processes, std::uint64_t seed, std::chrono::milliseconds longest)
    : processes_(std::move(processes)), longest_(longest), thread_([this, seed] { run(seed); }) {}

Stopper::~Stopper() {
  ended_ = true;
  thread_.join();
}

// The time is what is tested here, so it is slept.
void Stopper::run(std::uint64_t seed) const {
  Dice dice(seed);
  while (!ended_) {
    const pid_t process = processes_[dice.between(0, processes_.size() - 1)];
    ::kill(process, SIGSTOP);
    std::this_thread::sleep_for(
        std::chrono::milliseconds(dice.up_to(static_cast<std::uint64_t>(longest_.count()))));
    ::kill(process, SIGCONT);
    ++count_;
    std::this_thread::sleep_for(std::chrono::milliseconds(dice.up_to(64)));
  }
}

}  // namespace p2p::chaos
